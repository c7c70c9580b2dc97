"""Blame."""
