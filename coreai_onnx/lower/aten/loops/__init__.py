"""Loops over steps whose number is known only at run time."""
