"""Sorting, searching, counting, quantiles."""
