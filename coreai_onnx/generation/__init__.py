"""Generation of text and tokens with decoders in sessions."""

from coreai_onnx.generation.generating import LanguageModel, generate, stream

__all__ = ["LanguageModel", "generate", "stream"]
