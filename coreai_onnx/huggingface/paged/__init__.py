"""Decoders with a paged cache: rows of any length, in blocks of pools that they share."""
