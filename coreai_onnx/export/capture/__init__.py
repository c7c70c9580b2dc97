"""Exports modules and functions as functional programs."""
