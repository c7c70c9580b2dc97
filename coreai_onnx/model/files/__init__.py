"""Models as files: read, written, checked."""
