"""Builders of ONNX nodes, and the dtypes and dims of their values."""
