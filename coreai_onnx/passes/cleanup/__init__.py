"""Passes that remove, merge and fold."""
