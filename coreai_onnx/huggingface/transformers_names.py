"""Names of transformers that it does not document; the rest of the package uses them through here.

``export/compat`` has those that an export of a model needs, without an import of transformers.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch
import transformers

from coreai_onnx.export.compat.patches import patched
from coreai_onnx.model.dependencies import imported_from, missing, needs, require

with imported_from("transformers"):
    from transformers import cache_utils, masking_utils
    from transformers.cache_utils import DynamicLayer
    from transformers.conversion_mapping import get_model_conversion_mapping
    from transformers.core_model_loading import (
        Concatenate,
        MergeModulelist,
        WeightConverter,
        WeightRenaming,
        rename_source_key,
    )
    from transformers.generation.candidate_generator import PromptLookupCandidateGenerator
    from transformers.initialization import no_init_weights
    from transformers.masking_utils import create_causal_mask
    from transformers.modeling_gguf_pytorch_utils import (
        TENSOR_PROCESSORS,
        TensorProcessor,
        get_gguf_hf_weights_map,
        load_gguf_checkpoint,
    )
    from transformers.modeling_outputs import BaseModelOutputWithPast
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    from transformers.models.auto.tokenization_auto import TOKENIZER_MAPPING_NAMES
    from transformers.utils import ModelOutput


class _NoStates:
    """Base of the layers that keep recurrent states, where transformers has no such layers."""


# Without them, models with recurrent states have caches of their own: see `require_states`.
LinearAttentionLayer: Any = getattr(cache_utils, "LinearAttentionLayer", _NoStates)
LinearAttentionAndFullAttentionLayer: Any = getattr(
    cache_utils, "LinearAttentionAndFullAttentionLayer", _NoStates
)
# A layer that keeps nothing; before 5.23, transformers uses a layer of states without any.
DummyLayer: Any = getattr(cache_utils, "DummyLayer", LinearAttentionLayer)

CACHE = "cache" if hasattr(BaseModelOutputWithPast(), "cache") else "past_key_values"
"""The name of caches among the arguments and results of models; 5.24 renamed it."""
_STATES = ("conv_states", "recurrent_states", "conv_kernel_size", "has_previous_state")
_ARE_INITIALIZED = ("is_conv_states_initialized", "is_recurrent_states_initialized")
# Methods that the caches of this package override: transformers would not call them by another
# name, and keep its own states.
_UPDATES = ("update_conv_state", "update_recurrent_state")
_BIASES, _BUCKET = "compute_bias", "_relative_position_bucket"
_INDICES, _IGNORES = "_non_vmap_expansion_sdpa", "_ignore_causal_mask_sdpa"
_CONVERTER = WeightConverter(
    source_patterns=["a"], target_patterns="b", operations=[MergeModulelist()]
)
require(
    "transformers",
    [
        (DynamicLayer(), ("keys", "values", "is_initialized")),
        (DynamicLayer, ("update", "get_seq_length", "get_mask_sizes")),
        (transformers.DynamicCache(), ("layers",)),
        (PromptLookupCandidateGenerator(), ("get_candidates",)),
        (_CONVERTER, ("operations", "source_patterns")),
    ],
)


def require_states(of: str, *, in_blocks: bool = False) -> None:
    """Check that layers of a cache keep recurrent states as this package reads them.

    Args:
        of: What has the states, for the message.
        in_blocks: Whether only ``layers_block_type`` of a configuration tells which layers have
            states, as for RecurrentGemma; 5.23, which added ``DummyLayer``, reads it.

    Raises:
        LibraryVersionError: If transformers is older than 5.14 or 5.23.
    """
    feature = f"a cache with the recurrent states of {of}"
    if in_blocks and DummyLayer is LinearAttentionLayer:
        raise needs("transformers", "5.23", feature)
    layer = (*_STATES, *_ARE_INITIALIZED, *_UPDATES, "number_of_states")
    attributes = [(LinearAttentionLayer(), layer), (transformers.DynamicCache(), _UPDATES)]
    if any(missing(attributes)):
        raise needs("transformers", "5.14", feature)


def has_class_for(auto_class: Any, config: Any) -> bool:
    """Whether an ``AutoModelFor…`` class has a model for a configuration."""
    require("transformers", [(auto_class, ("_model_mapping",))])
    return type(config) in auto_class._model_mapping  # noqa: SLF001 - nothing public tells it


@functools.cache
def architectures_of(auto_class: Any) -> frozenset[str]:
    """Return the names of the classes of models that an ``AutoModelFor…`` class has."""
    require("transformers", [(auto_class, ("_model_mapping",))])
    mapping = auto_class._model_mapping  # noqa: SLF001 - nothing public tells it
    require("transformers", [(mapping, ("_model_mapping",))])
    # The names, without an import of the classes.
    names = mapping._model_mapping.values()  # noqa: SLF001
    return frozenset(n for name in names for n in ([name] if isinstance(name, str) else name))


def causal_classes() -> dict[str, str]:
    """Return the names of the classes of language models, by their ``model_type``."""
    return dict(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)


def model_of_config(cls: Any, config: Any) -> torch.nn.Module:
    """Return a model with random weights.

    Args:
        cls: A class of models, or an ``AutoModelFor…`` class.
        config: Its configuration.
    """
    # Classes of models have no public method for it; only the Auto classes have.
    if not issubclass(cls, transformers.PreTrainedModel):
        model: torch.nn.Module = cls.from_config(config)
        return model
    require("transformers", [(cls, ("_from_config",))])
    model = cls._from_config(config)
    return model


def tokenizer_of_gguf(path: Path, model_type: str) -> Any:
    """Return the tokenizer in a GGUF file of a model.

    Args:
        path: The file.
        model_type: The architecture; without it, transformers parses all metadata for it, which
            took 2 minutes for Gemma 3 instead of 5 seconds (transformers 5.23, 2026-11).
    """
    options = {"gguf_file": path.name, "local_files_only": True}
    if model_type in TOKENIZER_MAPPING_NAMES:
        options["tokenizer_type"] = model_type
        return transformers.AutoTokenizer.from_pretrained(path.parent, **options)
    return transformers.TokenizersBackend.from_pretrained(path.parent, **options)


@contextmanager
def attention_implementation(model: Any, name: str) -> Iterator[None]:
    """While active, the layers of a model use an attention by its name."""
    configs = {id(m.config): m.config for m in model.modules() if hasattr(m, "config")}
    before = [(config, config._attn_implementation) for config in configs.values()]  # noqa: SLF001 - a call of the model would check the name
    try:
        for config, _ in before:
            config._attn_implementation = name  # noqa: SLF001
        yield
    finally:
        for config, implementation in before:
            config._attn_implementation = implementation  # noqa: SLF001


@contextmanager
def offsets_by_row(model: torch.nn.Module) -> Iterator[None]:
    """While active, masks have an offset of the queries for each row, ``[batch, 1]``.

    So have the biases of T5, and the positions of BART.

    Args:
        model: The model whose layers may compute either.

    Raises:
        LibraryVersionError: If transformers has no such functions.
    """
    require("transformers", [(masking_utils, (_INDICES, _IGNORES))])

    def by_row(original: Any) -> Any:
        def indices(batch: Any, head: Any, queries: Any, keys: Any) -> Any:
            if queries.ndim == 1:
                return original(batch, head, queries, keys)
            batch, head, _, keys = original(batch, head, queries[0], keys)
            return batch, head, queries[:, None, :, None], keys

        return indices

    def positions(original: Any) -> Any:
        def embedded(*args: Any, **options: Any) -> Any:
            # BART adds an axis for the batch, which positions of each row have already.
            result = original(*args, **options)
            return result[0] if result.ndim == 4 else result

        return embedded

    classes = {type(module) for module in model.modules()}
    with ExitStack() as patches:
        patches.enter_context(patched(masking_utils, _INDICES, by_row))
        # Without a mask, all rows would have the same offset.
        never = patched(masking_utils, _IGNORES, lambda _: lambda *_args, **_options: False)
        patches.enter_context(never)
        for cls in classes:
            if hasattr(cls, _BIASES) and hasattr(cls, _BUCKET):
                patches.enter_context(patched(cls, _BIASES, _biases_by_row))
            if cls.__name__.endswith("LearnedPositionalEmbedding"):
                patches.enter_context(patched(cls, "forward", positions))
        yield


def _biases_by_row(original: Any) -> Any:
    """Return T5's biases of relative positions, ``[batch, heads, queries, keys]``."""

    def biases(layer: Any, queries: Any, keys: Any, **given: Any) -> Any:
        past = given.get("past_seen_tokens")
        if not isinstance(past, torch.Tensor) or past.ndim != 2:
            return original(layer, queries, keys, **given)
        distances = torch.arange(keys) - (past + torch.arange(queries))[..., None]
        buckets = getattr(layer, _BUCKET)(
            distances,
            bidirectional=not layer.is_decoder,
            num_buckets=layer.relative_attention_num_buckets,
            max_distance=layer.relative_attention_max_distance,
        )
        return layer.relative_attention_bias(buckets).permute(0, 3, 1, 2)

    return biases


@contextmanager
def with_attention(layers: Iterable[Any], name: str) -> Iterator[None]:
    """While active, some layers of a model use an attention by its name, and the others do not."""
    before = [(layer, layer.config) for layer in layers]
    try:
        for layer, config in before:
            layer.config = copy.copy(config)
            layer.config._attn_implementation = name  # noqa: SLF001 - as above
        yield
    finally:
        for layer, config in before:
            layer.config = config


def precompute_inputs(encoder: Any, inputs: dict[str, Any]) -> None:
    """Add what transformers computes outside of an exported encoder, from other inputs.

    Raises:
        LibraryVersionError: If transformers is older than 5.14.
    """
    with imported_from("transformers", "5.14", "an encoder of pictures of several sizes"):
        from transformers.exporters.utils import precompute_export_inputs

    precompute_export_inputs(encoder, inputs)


def pipeline_class(task: str) -> Any:
    """Return the class of transformers' pipeline for a task, or its qualified name.

    Raises:
        KeyError: If there is none.
    """
    # Imported when needed: the pipelines import torchao, which prints warnings.
    with imported_from("transformers"):
        from transformers.pipelines import PIPELINE_REGISTRY

    return PIPELINE_REGISTRY.check_task(task)[1]["impl"]


def sentencepiece_model() -> Any:
    """Return an empty model of SentencePiece, a protobuf message that transformers has."""
    # Imported when needed: two libraries with this message in one process are an error of protobuf.
    with imported_from("transformers"):
        from transformers.utils.sentencepiece_model_pb2_new import ModelProto

    return ModelProto()
