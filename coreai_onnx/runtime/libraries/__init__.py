"""Libraries."""
