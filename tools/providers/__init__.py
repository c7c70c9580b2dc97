"""Measure files on execution providers other than the CPU."""
