"""Export of torch modules, and analysis of exported programs."""
