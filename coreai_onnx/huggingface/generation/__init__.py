"""Generation of text and tokens with decoders in sessions, and the perplexity of texts."""

from coreai_onnx.huggingface.generation.engine import Engine
from coreai_onnx.huggingface.generation.generating import LanguageModel, generate, stream
from coreai_onnx.huggingface.generation.perplexity import perplexity
from coreai_onnx.huggingface.generation.replies import Reply

__all__ = ["Engine", "LanguageModel", "Reply", "generate", "perplexity", "stream"]
