"""Creating, joining, splitting, padding and viewing tensors."""
