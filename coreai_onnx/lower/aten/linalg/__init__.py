"""Products, factorizations and solutions."""
