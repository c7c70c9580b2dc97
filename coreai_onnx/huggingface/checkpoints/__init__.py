"""Quantized checkpoints: one file per format, and the layers that hold their weights."""
