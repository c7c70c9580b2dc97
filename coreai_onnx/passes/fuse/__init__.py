"""Passes that make one node of several."""
