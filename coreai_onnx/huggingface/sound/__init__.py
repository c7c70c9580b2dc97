"""Models that make sound in several steps: speech and music."""
