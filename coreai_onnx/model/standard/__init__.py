"""Standard."""
