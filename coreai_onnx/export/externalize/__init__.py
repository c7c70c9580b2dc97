"""Modules that are exported as single ops."""
