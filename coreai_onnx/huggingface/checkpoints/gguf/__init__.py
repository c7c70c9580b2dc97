"""GGUF files: their header, the codes of their types, and models of transformers with them."""
