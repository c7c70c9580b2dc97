"""Operators that are calls of composites."""
