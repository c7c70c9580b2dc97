"""Tensors."""
