"""Half."""
