"""Generation of text and tokens with decoders in sessions, and the perplexity of texts."""

from coreai_onnx.export.compat.torch_warnings import import_torchao

import_torchao()  # the imports below import transformers, which imports it

from coreai_onnx.huggingface.generation.generating import LanguageModel, generate, stream  # noqa: E402
from coreai_onnx.huggingface.generation.perplexity import perplexity  # noqa: E402

__all__ = ["LanguageModel", "generate", "perplexity", "stream"]
