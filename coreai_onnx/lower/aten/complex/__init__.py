"""Complex tensors, stored as pairs of real numbers."""
