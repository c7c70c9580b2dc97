"""The walk over an exported program, and the registry of lowerings."""
