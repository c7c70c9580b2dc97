"""What is in a model, and what is wrong with it."""
