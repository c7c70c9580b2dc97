"""Programs without in-place operators."""
