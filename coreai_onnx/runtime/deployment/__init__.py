"""Files in tables and servers: predictions over rows, and the packages that servers read."""
