"""Quantization of the weights of finished models, with and without calibration data."""
