"""Commands that compare a file: with torch, with another file, with itself."""
