"""Models of pictures or sound and text: their encoders, embeddings and decoder as files."""
