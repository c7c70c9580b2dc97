"""Profile."""
