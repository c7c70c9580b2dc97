"""What is known about torch modules and exported programs."""
