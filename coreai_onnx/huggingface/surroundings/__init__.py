"""What belongs around a model, in its file: tokenizers, image processors, post-processing."""
