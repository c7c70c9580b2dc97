"""Recognition of building blocks that composites can replace."""
