"""Blocks of models that are composites."""
