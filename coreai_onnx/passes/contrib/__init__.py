"""Passes that make ONNX Runtime's own operators."""
