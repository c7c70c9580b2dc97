"""Element by element: arithmetic, comparison, activation, conversion."""
