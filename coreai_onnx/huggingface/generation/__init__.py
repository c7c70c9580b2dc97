"""Generation of text and tokens with decoders in sessions, and the perplexity of texts."""

from coreai_onnx.huggingface.generation.generating import LanguageModel, generate, stream
from coreai_onnx.huggingface.generation.perplexity import perplexity

__all__ = ["LanguageModel", "generate", "perplexity", "stream"]
