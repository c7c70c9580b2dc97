"""Reference."""
