"""Decoders as modules: their caches, and the logits that they return."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import onnx_ir as ir
import torch
from torch.export import Dim

from coreai_onnx.composites.caches import dequantized_rows, quantized_rows
from coreai_onnx.errors import ConversionError
from coreai_onnx.huggingface.caches import (
    EXAMPLE_PAST,
    STATE,
    Both,
    Growing,
    Slot,
    Static,
    cache_of,
    cache_parameter,
    slots_of,
    states_in_cache,
    tensors_of,
)
from coreai_onnx.model.contract import Contract
from coreai_onnx.model.interface import CAPACITY

KEPT = "logits_to_keep"
"""The parameter of a decoder that takes the places of the logits to compute."""
BATCH, SEQUENCE, PAST = "batch_size", "sequence_length", "past_sequence_length"
TOTAL = f"{PAST} + {SEQUENCE}"
TOTAL_DIM = "total_sequence_length"
KEPT_DIM = "kept_length"
_BIASES_OF_POSITIONS = ("mpt",)
"""Models with a table of biases for ``max_seq_len`` positions, from which they cut a part."""


class Decoder(torch.nn.Module):
    """A decoder whose cache goes in and comes out, if it has one.

    Attributes:
        input_names: Names of the inputs, in the order of the flattened arguments.
        output_names: Names of the outputs.
        slots: The tensors of the cache.
        takes_mask: Whether it has the input ``attention_mask``.
        takes_positions: Whether it has the input ``position_ids``.
        selects_logits: Whether it computes the logits of some places only, the input
            ``logits_to_keep``.
    """

    def __init__(self, model: torch.nn.Module, *, is_static: bool = False) -> None:
        """Find out what the decoder caches and whether it takes positions.

        Args:
            model: The decoder.
            is_static: Whether the cache has a fixed capacity.
        """
        super().__init__()
        self.model: Any = model
        self.slots = slots_of(model, is_static=is_static)
        parameters = inspect.signature(model.forward).parameters
        self.takes_positions = "position_ids" in parameters
        self.selects_logits = KEPT in parameters
        self.takes_mask = cache_parameter(model) != STATE  # RWKV ignores it
        first = ["input_ids", *(["attention_mask"] if self.takes_mask else [])]
        first += ["position_ids"] if self.takes_positions else []
        first += [KEPT] if self.selects_logits else []
        self.input_names = [*first, *(slot.past for slot in self.slots)]
        self.output_names = ["logits", *(slot.present for slot in self.slots)]

    def contract(self, padding: str) -> Contract | None:
        """Return what callers feed; None without a mask or without keys and values.

        Args:
            padding: ``"left"`` or ``"none"``.
        """
        growing = [slot for slot in self.slots if slot.grows]
        if not growing or not self.takes_mask:
            return None
        config = self.model.config.get_text_config(decoder=True)
        count = getattr(config, "max_position_embeddings", None)
        return Contract(padding, "static" if growing[0].is_static else "growing", count)

    def finish(self, model: ir.Model) -> None:
        """Make inputs of a converted decoder optional; it is changed in place."""
        if self.selects_logits:
            count_logits(model)

    def first(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return the first argument for tokens: the tokens."""
        return tokens

    def forward(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor | None,
        position_ids: torch.Tensor | None,
        logits_to_keep: torch.Tensor | None,
        past: Sequence[torch.Tensor],
    ) -> tuple[torch.Tensor, ...]:
        """Return the logits and the cache after the call."""
        # The mask covers cached and new tokens, so that no input has to say how many are cached.
        filled = 0 if attention_mask is None else attention_mask.shape[1] - input_ids.shape[1]
        cache = self._filled(past, filled)
        further: dict[str, Any] = {"position_ids": position_ids} if self.takes_positions else {}
        parameter = cache_parameter(self.model)
        if parameter is not None:
            further |= {parameter: cache, "use_cache": True}
        if attention_mask is not None:
            # Models whose states are all recurrent take the mask of the new tokens.
            kinds = {slot.kind for slot in self.slots}
            is_short = bool(kinds) and kinds.isdisjoint(("key", "value", STATE))
            further["attention_mask"] = attention_mask[:, filled:] if is_short else attention_mask
        further |= {} if logits_to_keep is None else {KEPT: logits_to_keep}
        # In ``forward``, because torch.export traces the patched layers only while it runs.
        with states_in_cache(self.model):
            result = self.model(input_ids=input_ids, **further)
        return (result.logits, *self._presents(cache))

    def _filled(self, past: Sequence[torch.Tensor], filled: int) -> Any:
        """Return a cache that holds tensors in the slots; a static one has ``filled`` tokens."""
        return cache_of(self.slots, past, filled)

    def _presents(self, cache: Any) -> Iterator[torch.Tensor]:
        """Yield the tensors of a cache after a call."""
        return tensors_of(cache, self.slots)

    def example(self, dtype: torch.dtype) -> tuple[Any, ...]:
        """Return example arguments: a batch of 2 with 3 tokens after 4 cached ones.

        Args:
            dtype: Not used: the cache has the dtype that the model gives it.
        """
        del dtype
        return self.arguments(2, 3, EXAMPLE_PAST if self.slots else 0)

    def arguments(self, batch: int, length: int, past: int) -> tuple[Any, ...]:
        """Return arguments for a number of tokens after a number of cached ones."""
        ids = torch.ones(batch, length, dtype=torch.int64)
        mask = torch.ones(batch, past + length, dtype=torch.int64) if self.takes_mask else None
        positions = torch.arange(past, past + length).repeat(batch, 1)
        # As a tensor of places: transformers also takes an int, which an export would fix.
        kept = torch.arange(length) if self.selects_logits else None
        cache = [slot.example(batch, None if slot.is_static else past) for slot in self.slots]
        return ids, mask, positions if self.takes_positions else None, kept, cache

    def dynamic_shapes(self) -> tuple[Any, ...]:
        """Return the dynamic dims of `example`, bounded if the model computes no longer texts."""
        ids: dict[int, Any] = {0: BATCH, 1: SEQUENCE}
        past: list[dict[int, Any]] = [cache_dims(slot) for slot in self.slots]
        mask: dict[int, Any] = {0: BATCH, 1: TOTAL_DIM} if self.slots else ids
        config = self.model.config
        # The table has no biases for longer texts: a slice of it would be too short.
        if config.model_type in _BIASES_OF_POSITIONS:
            ids[1] = Dim(SEQUENCE, min=0, max=config.max_seq_len)
            past = [{**dims, 2: Dim(dims[2], min=0, max=config.max_seq_len)} for dims in past]
        positions = ids if self.takes_positions else None
        kept = {0: KEPT_DIM} if self.selects_logits else None
        return ids, mask if self.takes_mask else None, positions, kept, past


class CachedTokens:
    """How the keys and values of new tokens are added to those of a layer."""

    def joined(self, old: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
        """Return keys, values, codes or scales with those of new tokens."""
        return torch.cat([old, new], dim=2)

    def rows(self, x: torch.Tensor) -> torch.Tensor:
        """Return what attention reads of them, ``[batch, heads, length, dim]``."""
        return x


class InCodes(CachedTokens):
    """Keys and values as codes of few bits, with a scale for each token and head.

    They are rotated before they are rounded, after Ashkboos et al. 2024 (QuaRot), so that a few
    large elements of a token do not set the scale of all.
    """

    bits: int
    scales: dict[str, torch.Tensor]
    rotations: dict[int, torch.Tensor]

    def update(
        self: Any, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Add the codes of the keys and values of new tokens, and return the values of all."""
        del args, kwargs
        results = []
        for kind, x in (("keys", key_states), ("values", value_states)):
            rotation = self.rotations[x.shape[-1]].to(x.dtype)
            codes, scales = quantized_rows(x @ rotation, self.bits)
            codes = self.joined(getattr(self, kind), codes)
            self.scales[kind] = self.joined(self.scales[kind], scales)
            setattr(self, kind, codes)
            codes, scales = self.rows(codes), self.rows(self.scales[kind])
            values = dequantized_rows(codes, scales, self.bits, x.dtype)
            # The pass `fuse_attention_nbits` rotates queries and results instead of all tokens.
            results.append(values @ rotation)
        return results[0], results[1]


class _Coded(InCodes, Growing):
    """A layer with keys and values."""


class _CodedBoth(InCodes, Both):
    """A layer with a recurrent state, too."""


class _CodedStatic(InCodes, Static):
    """A layer of a fixed capacity."""

    def joined(self, old: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
        """Return codes or scales with those of new tokens, written after the earlier ones."""
        batch, heads, length = (torch.arange(size) for size in new.shape[:3])
        # By indices of whole rows: index_copy would transpose the cache.
        where = batch[:, None, None], heads[:, None], length + self.filled
        return old.index_put(where, new)


class CodedDecoder(Decoder):
    """A decoder whose keys and values are codes of few bits; recurrent states stay as they are."""

    def __init__(self, model: torch.nn.Module, bits: int, *, is_static: bool = False) -> None:
        """Find out what the decoder caches.

        Args:
            model: The decoder.
            bits: Size of a code: 8 or 4.
            is_static: Whether the cache has a fixed capacity.

        Raises:
            ConversionError: If it caches no keys and values, or their size is odd.
        """
        super().__init__(model, is_static=is_static)
        name, self._bits, self._values = type(model).__name__, bits, self.slots
        dims = {slot.shape[2] for slot in self.slots if slot.grows}
        # Constants of the program: torch.export would compute them in each layer.
        self._rotations = {dim: hadamard_blocks(dim) for dim in sorted(dims)}
        if not any(slot.grows for slot in self.slots):
            raise ConversionError(
                f"{name} has no keys and values to store in {bits} bits: its recurrent states stay "
                "in the dtype of the computation",
                advice="export it without cache_bits",
            )
        if odd := [slot for slot in self.slots if slot.grows and slot.shape[2] * bits % 8]:
            raise ConversionError(
                f"{name}: {odd[0].past} has {odd[0].shape[2]} values for each token, "
                "and two codes of 4 bits are in a byte",
                advice="choose cache_bits=8",
            )
        first = self.input_names[: len(self.input_names) - len(self.slots)]
        self.slots = [coded for slot in self.slots for coded in _coded_slots(slot, bits)]
        self.input_names = [*first, *(slot.past for slot in self.slots)]
        self.output_names = [self.output_names[0], *(slot.present for slot in self.slots)]

    def _filled(self, past: Sequence[torch.Tensor], filled: int) -> Any:
        pairs = list(zip(self.slots, past, strict=True))
        codes = [x for slot, x in pairs if not slot.kind.endswith(_SCALE)]
        cache = cache_of(self._values, codes, filled)
        for index, layer in enumerate(cache.layers):
            scales = {
                f"{slot.kind.removesuffix(_SCALE)}s": x
                for slot, x in pairs
                if slot.layer == index and slot.kind.endswith(_SCALE)
            }
            if scales:
                cache.layers[index] = _in_codes(layer, scales, self._bits, self._rotations)
        return cache

    def _presents(self, cache: Any) -> Iterator[torch.Tensor]:
        for slot, x in zip(self._values, tensors_of(cache, self._values), strict=True):
            yield x
            if slot.grows:
                yield cache.layers[slot.layer].scales[f"{slot.kind}s"]


def hadamard_blocks(dim: int) -> torch.Tensor:
    """Return a symmetric orthogonal matrix ``[dim, dim]``, float32, its own inverse.

    Hadamard matrices of the largest power of two that divides ``dim`` are on its diagonal, after
    Sylvester 1867; of an odd ``dim`` it is the identity.
    """
    block, size = torch.ones(1, 1), dim & -dim
    while len(block) < size:
        block = torch.cat([torch.cat([block, block], 1), torch.cat([block, -block], 1)])
    rotation: torch.Tensor = torch.block_diag(*[block / size**0.5] * (dim // size))
    return rotation


_SCALE = "_scale"


def _coded_slots(slot: Slot, bits: int) -> list[Slot]:
    """Return the slots of codes and scales of keys or values, or the slot of a recurrent state."""
    if not slot.grows:
        return [slot]
    heads, length, dim = slot.shape
    codes = replace(slot, shape=(heads, length, dim * bits // 8), dtype=torch.uint8)
    return [codes, replace(slot, kind=f"{slot.kind}{_SCALE}", shape=(heads, length, 1))]


def _in_codes(
    layer: Any, scales: dict[str, torch.Tensor], bits: int, rotations: dict[int, torch.Tensor]
) -> Any:
    """Return a layer whose keys and values are codes."""
    coded: Any = _CodedStatic() if isinstance(layer, Static) else _Coded()
    if isinstance(layer, Both):
        coded = _CodedBoth()
    vars(coded).update(vars(layer), scales=scales, bits=bits, rotations=rotations)
    return coded


def cache_dims(slot: Slot, length: Any = PAST) -> dict[int, Any]:
    """Return the dynamic dims of a tensor of a cache.

    Args:
        slot: The tensor.
        length: The name of the length of keys and values, or its ``Dim``; None if it is fixed.
    """
    if not slot.grows or length is None:
        return {0: BATCH}
    return {0: BATCH, 2: CAPACITY if slot.is_static else length}


COUNT = "num_logits_to_keep"
"""The optional input, int64 ``[]``, by the name that transformers.js has for it."""
_TO_THE_END = np.iinfo(np.int64).max


def count_logits(model: ir.Model) -> None:
    """Replace the places of the logits to compute by the number of the last ones.

    The input ``logits_to_keep`` becomes the optional input ``num_logits_to_keep``. Its default, 0,
    is the number of all tokens:

        Slice(Range(0, length of input_ids, 1), -num_logits_to_keep, the largest number)

    Args:
        model: The decoder; changed in place.
    """
    graph = model.graph
    inputs = {value.name: value for value in graph.inputs}
    places, ids = inputs[KEPT], graph.inputs[0]  # tokens, or their embeddings
    # An input with an initializer is optional in ONNX: callers that do not know it get all logits.
    count = ir.val(COUNT, const_value=ir.tensor(np.array(0, np.int64), name=COUNT))
    graph.inputs[list(graph.inputs).index(places)] = count
    graph.initializers[COUNT] = count
    nodes: list[ir.Node] = []

    def add(op_type: str, *given: ir.Value | int | list[int], **attributes: int) -> ir.Value:
        values = [_constant(one, nodes) if not isinstance(one, ir.Value) else one for one in given]
        node = ir.node(op_type, values, attributes)
        node.outputs[0].name = node.name = f"{KEPT}.{op_type}"
        nodes.append(node)
        return node.outputs[0]

    length = add("Squeeze", add("Shape", ids, start=1, end=2), [0])
    first = add("Unsqueeze", add("Neg", count), [0])
    # A slice from -0 is one from 0: the default selects all tokens.
    last = add("Slice", add("Range", 0, length, 1), first, [_TO_THE_END])
    # Shape inference has run already, and readers rely on its dims.
    last.type, last.shape = places.type, places.shape
    ir.convenience.replace_all_uses_with(places, last)
    # Before all nodes that may read the places.
    graph.insert_before(next(iter(graph)), nodes)


def _constant(number: int | list[int], nodes: list[ir.Node]) -> ir.Value:
    tensor = ir.tensor(np.array(number, np.int64))
    node = ir.node("Constant", [], {"value": tensor})
    node.outputs[0].name = node.name = f"{KEPT}.constant_{len(nodes)}"
    nodes.append(node)
    return node.outputs[0]
