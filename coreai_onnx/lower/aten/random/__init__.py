"""Random numbers and hashes."""
