"""Sums, extremes, moments and norms along axes."""
