"""Models that run once: their tasks, inputs and heads."""
