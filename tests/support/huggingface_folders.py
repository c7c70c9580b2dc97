"""Small folders of transformers: a configuration, random or trained weights and a tokenizer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

LLAMA: dict[str, Any] = {
    "vocab_size": 260,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
BERT: dict[str, Any] = {
    "vocab_size": 260,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
}
DOCSTRING_LLAMA = Path(__file__).parents[1] / "models" / "docstring_llama"
"""A folder with a small model that was trained: tools/train_docstring_llama.py."""
HELD_OUT = DOCSTRING_LLAMA / "held_out.txt"
"""Text that it was not trained on."""


def docstring_llama() -> Any:
    """Return the small model that was trained, in float32."""
    return transformers.AutoModelForCausalLM.from_pretrained(
        DOCSTRING_LLAMA, dtype=torch.float32, local_files_only=True
    )


def docstring_tokenizer() -> Any:
    """Return its tokenizer."""
    return transformers.AutoTokenizer.from_pretrained(DOCSTRING_LLAMA, local_files_only=True)


def tokenizer() -> transformers.PreTrainedTokenizerFast:
    """Return a tokenizer whose tokens are bytes, after three special tokens."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    special = ["<pad>", "<s>", "</s>"]
    vocabulary = {token: i for i, token in enumerate([*special, *alphabet])}
    made = Tokenizer(models.BPE(vocabulary, []))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=made, pad_token=special[0], bos_token=special[1], eos_token=special[2]
    )


def llama(**settings: Any) -> Any:
    """Return a decoder with random weights, the same each time."""
    torch.manual_seed(0)
    config = transformers.LlamaConfig(**(LLAMA | settings))
    model = transformers.LlamaForCausalLM(config).eval()
    for parameter in model.parameters():
        if parameter.ndim > 1:
            torch.nn.init.normal_(parameter, std=parameter.shape[-1] ** -0.5)
    return model


def llama_folder(folder: Path) -> Any:
    """Write a folder with a decoder and a tokenizer, and return the decoder."""
    model = llama()
    model.save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    return model
