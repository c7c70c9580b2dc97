"""Diff."""
