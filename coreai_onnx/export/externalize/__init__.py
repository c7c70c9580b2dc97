"""Modules that stay whole."""
