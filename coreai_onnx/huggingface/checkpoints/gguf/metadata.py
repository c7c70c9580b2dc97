"""The metadata of a GGUF file: hyperparameters and tokenizer, under the names of llama.cpp.

What an architecture of llama.cpp computes in another way than the model is refused: it would load
the file and answer differently.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import transformers
from gguf import GGUFWriter, RopeScalingType, TokenType

from coreai_onnx.errors import ModelSourceError, failures_as
from coreai_onnx.huggingface.transformers_names import (
    TENSOR_PROCESSORS,
    TensorProcessor,
    get_gguf_hf_weights_map,
)

ARCHITECTURES = MappingProxyType(
    {
        "llama": "llama",
        "mistral": "llama",
        "qwen2": "qwen2",
        "qwen3": "qwen3",
        "gemma3_text": "gemma3",
        "mixtral": "llama",
        "qwen2_moe": "qwen2moe",
        "qwen3_moe": "qwen3moe",
    }
)
"""Architectures of transformers to those of llama.cpp."""
_ACTIVATIONS = MappingProxyType({"gemma3_text": ("gelu_pytorch_tanh",)})
_OF_OTHERS = ("silu", "swish")
_NORMALIZES_EXPERTS = MappingProxyType({"qwen2_moe": False, "qwen3_moe": True})
"""Whether llama.cpp divides the probabilities of the chosen experts by their sum."""
# In llama.cpp, every sixth layer of Gemma 3 has full attention.
_PERIOD = 6
_WINDOWS = ("mistral", "mixtral")
# Gemma 3 27B, whose queries are divided by the root of another size than that of a head.
_LAYERS_27B = 62
FULL, SLIDING = "full_attention", "sliding_attention"
_SPLIT = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
_SPLIT_END = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_PRE_TOKENIZERS = MappingProxyType(
    {
        (_SPLIT + r"\p{N}" + _SPLIT_END,): "qwen2",
        (_SPLIT + r"\p{N}{1,3}" + _SPLIT_END,): "llama-bpe",
        (): "gpt-2",
    }
)
"""The expressions that split texts before merges, to their names in llama.cpp."""
_SPACE = "▁"
_NO_SCORE = -1e6
"""The score of a token that no merge makes."""


def check_config(config: Any) -> str:
    """Return the architecture of llama.cpp for a configuration.

    Raises:
        ModelSourceError: If there is none, or it computes a setting in another way.
    """
    kind = config.model_type
    if kind not in ARCHITECTURES:
        raise ModelSourceError(f"{kind} cannot be written as GGUF, only {', '.join(ARCHITECTURES)}")
    for fault in _faults(config, kind):
        raise ModelSourceError(f"llama.cpp does not compute this {kind}: {fault}")
    return ARCHITECTURES[kind]


def _faults(config: Any, kind: str) -> Iterator[str]:
    """Yield the settings that llama.cpp does not have."""
    activation = getattr(config, "hidden_act", None) or config.hidden_activation
    if activation not in _ACTIVATIONS.get(kind, _OF_OTHERS):
        yield f"its activation is {activation}"
    for name in ("final_logit_softcapping", "attn_logit_softcapping"):
        if getattr(config, name, None) is not None:
            yield f"{name} is {getattr(config, name)}"
    if getattr(config, "use_bidirectional_attention", False):
        yield "its attention is bidirectional"
    if kind in _NORMALIZES_EXPERTS:
        yield from _faults_of_experts(config, normalizes=_NORMALIZES_EXPERTS[kind])
    if kind == "gemma3_text":
        expected = [SLIDING if (i + 1) % _PERIOD else FULL for i in range(config.num_hidden_layers)]
        if list(config.layer_types) != expected:
            yield f"its layers are not {_PERIOD - 1} of sliding attention to one of full attention"
        if config.query_pre_attn_scalar != (expected_scalar := query_scalar(config)):
            yield f"query_pre_attn_scalar is {config.query_pre_attn_scalar}, not {expected_scalar}"
    else:
        types = getattr(config, "layer_types", None) or ()
        window = getattr(config, "sliding_window", None) if kind in _WINDOWS else None
        if SLIDING in types or (window or math.inf) < config.max_position_embeddings:
            yield "it has sliding attention"
    yield from _faults_of_positions(config)


def _faults_of_experts(config: Any, *, normalizes: bool) -> Iterator[str]:
    if config.norm_topk_prob != normalizes:
        yield f"norm_topk_prob is {config.norm_topk_prob}"
    if config.decoder_sparse_step != 1 or config.mlp_only_layers:
        yield "some of its layers have no experts"


def _faults_of_positions(config: Any) -> Iterator[str]:
    for one in rope_parameters(config).values():
        if one.get("rope_type") not in ("default", "linear", "llama3"):
            yield f"its positions are scaled by {one.get('rope_type')}"
        if one.get("partial_rotary_factor", 1) != 1:
            yield "it rotates a part of each head"


def tensor_names(model: Any, architecture: str) -> tuple[Any, Any]:
    """Return what transformers does to tensors of a GGUF, and parameters by the names of tensors.

    Args:
        model: The model of transformers.
        architecture: Its architecture in GGUF.
    """
    processor = TENSOR_PROCESSORS.get(architecture, TensorProcessor)(config=model.config.to_dict())
    # transformers has the architecture of Llama in GGUF under that name only.
    kind = "llama" if architecture == "llama" else None
    return processor, get_gguf_hf_weights_map(model, processor, kind)


def query_scalar(config: Any) -> int:
    """Return the size by whose root llama.cpp divides the queries of Gemma 3."""
    if config.num_hidden_layers == _LAYERS_27B:
        return int(config.hidden_size // config.num_attention_heads)
    return head_dim(config)


def head_dim(config: Any) -> int:
    """Return the width of a head."""
    width = getattr(config, "head_dim", None)
    return int(width or config.hidden_size // config.num_attention_heads)


def rope_parameters(config: Any) -> dict[str, Mapping[str, Any]]:
    """Return the settings of positions by the type of layers."""
    parameters = config.rope_parameters
    return dict(parameters) if FULL in parameters else {FULL: parameters}


def add_hyperparameters(
    writer: GGUFWriter, config: Any, scales: Mapping[str, float], name: str
) -> None:
    """Add what a configuration says.

    Args:
        writer: The writer.
        config: The configuration.
        scales: By which factor the positions of a type of layers are divided.
        name: The name of the model.
    """
    writer.add_type("model")
    writer.add_name(name)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    if (experts := getattr(config, "num_experts_per_tok", None)) is not None:
        writer.add_expert_count(getattr(config, "num_local_experts", None) or config.num_experts)
        writer.add_expert_used_count(experts)
        if (width := getattr(config, "moe_intermediate_size", None)) is not None:
            writer.add_expert_feed_forward_length(width)
        if (width := getattr(config, "shared_expert_intermediate_size", None)) is not None:
            writer.add_expert_shared_feed_forward_length(width)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    for add in (writer.add_key_length, writer.add_value_length, writer.add_rope_dimension_count):
        add(head_dim(config))
    writer.add_vocab_size(config.vocab_size)
    parameters = rope_parameters(config)
    writer.add_rope_freq_base(parameters[FULL]["rope_theta"])
    if scales.get(FULL, 1) != 1:
        writer.add_rope_scaling_type(RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(scales[FULL])
    if SLIDING in parameters:
        writer.add_rope_freq_base_swa(parameters[SLIDING]["rope_theta"])
        writer.add_sliding_window(config.sliding_window)


def add_tokenizer(writer: GGUFWriter, folder: Path, size: int) -> None:
    """Add the tokenizer of a folder, and its chat template.

    Args:
        writer: The writer.
        folder: The folder.
        size: The number of tokens of the model.

    Raises:
        ModelSourceError: If there is none, or llama.cpp has no such tokenizer.
    """
    with failures_as(ModelSourceError, f"{folder}: the tokenizer cannot be read"):
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)
        content = json.loads(tokenizer.backend_tokenizer.to_str())
    model = content["model"]
    if model["type"] != "BPE":
        raise ModelSourceError(f"{folder}: llama.cpp has no tokenizer of the kind {model['type']}")
    tokens, types = _tokens(content, size)
    parts = list(_parts(content))
    merges = [pair.split(" ") if isinstance(pair, str) else pair for pair in model["merges"]]
    if any(part["type"] == "ByteLevel" for part in parts):
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre(_pre_tokenizer(parts, folder))
        writer.add_token_merges([" ".join(pair) for pair in merges])
    elif model.get("byte_fallback"):
        writer.add_tokenizer_model("llama")
        writer.add_tokenizer_pre("default")
        writer.add_token_scores(_scores(tokens, merges))
        writer.add_add_space_prefix(any(_adds_space(part) for part in parts))
    else:
        raise ModelSourceError(f"{folder}: llama.cpp has no tokenizer of BPE without bytes")
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    for name in ("bos", "eos", "unk", "pad"):
        if (number := getattr(tokenizer, f"{name}_token_id")) is not None:
            getattr(writer, f"add_{name}_token_id")(number)
    ids = tokenizer("a")["input_ids"]
    writer.add_add_bos_token(ids[0] == tokenizer.bos_token_id)
    writer.add_add_eos_token(ids[-1] == tokenizer.eos_token_id)
    if isinstance(tokenizer.chat_template, str):
        writer.add_chat_template(tokenizer.chat_template)


def _tokens(content: Any, size: int) -> tuple[list[str], list[TokenType]]:
    """Return the tokens of the model and their types; unused ones fill up the size."""
    tokens = [f"[PAD{i}]" for i in range(size)]
    types = [TokenType.UNUSED] * size
    vocabulary, added = content["model"]["vocab"], content["added_tokens"]
    in_bytes = content["model"].get("byte_fallback")
    # transformers adds tokens of its own, which the model does not have.
    for token, number in ((t, n) for t, n in vocabulary.items() if n < size):
        is_byte = in_bytes and len(token) == 6 and token.startswith("<0x")
        tokens[number] = token
        types[number] = TokenType.BYTE if is_byte else TokenType.NORMAL
    for one in (one for one in added if one["id"] < size):
        tokens[one["id"]] = one["content"]
        types[one["id"]] = TokenType.CONTROL if one["special"] else TokenType.USER_DEFINED
    unknown = content["model"].get("unk_token")
    if in_bytes and unknown in vocabulary:
        types[vocabulary[unknown]] = TokenType.UNKNOWN
    return tokens, types


def _parts(content: Any) -> Iterator[Any]:
    """Yield the normalizers and pre-tokenizers of a tokenizer."""
    for part in (content["normalizer"], content["pre_tokenizer"]):
        if part is not None:
            yield from part.get("normalizers") or part.get("pretokenizers") or [part]


def _pre_tokenizer(parts: list[Any], folder: Path) -> str:
    """Return llama.cpp's name of the expressions that split texts before merges."""
    expressions = tuple(
        part["pattern"].get("Regex", "") for part in parts if part["type"] == "Split"
    )
    others = {part["type"] for part in parts} - {"Split", "ByteLevel", "NFC"}
    if others or expressions not in _PRE_TOKENIZERS:
        raise ModelSourceError(f"{folder}: llama.cpp has no tokenizer that splits texts like this")
    return _PRE_TOKENIZERS[expressions]


def _adds_space(part: Any) -> bool:
    """Return whether a text begins with a space that it does not have."""
    if part["type"] == "Metaspace":
        return bool(part.get("prepend_scheme", "always") != "never")
    return bool(part["type"] == "Prepend" and part["prepend"] == _SPACE)


def _scores(tokens: list[str], merges: list[list[str]]) -> list[float]:
    """Return the scores with which llama.cpp merges in the order of the merges."""
    ranks: dict[str, int] = {}
    for rank, (first, second) in enumerate(merges):
        ranks.setdefault(first + second, rank)
    return [-float(ranks[token]) if token in ranks else _NO_SCORE for token in tokens]
