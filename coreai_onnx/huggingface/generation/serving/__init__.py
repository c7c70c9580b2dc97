"""An endpoint that answers OpenAI's requests with an exported language model."""
