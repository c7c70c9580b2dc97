"""What follows from a graph: sizes, positions, constant values."""
