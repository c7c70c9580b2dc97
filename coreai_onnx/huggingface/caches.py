"""The cache of a decoder as inputs and outputs of a model."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any, get_args

import torch
from transformers import Cache, DynamicCache

from coreai_onnx.errors import ConversionError, ModelSourceError, failures_as
from coreai_onnx.export.compat.patches import patched
from coreai_onnx.export.compat.state_space import recurrent_state
from coreai_onnx.export.deferred import run_for_shapes
from coreai_onnx.huggingface.transformers_names import (
    CACHE,
    DummyLayer,
    DynamicLayer,
    LinearAttentionAndFullAttentionLayer,
    LinearAttentionLayer,
    require_states,
)

EXAMPLE_PAST = 4
"""Length of the cache in the example inputs of an export."""
# Unlike all other sizes of the example: equal ones may take branches that others would not.
EXAMPLE_CAPACITY = 11
"""Capacity of a static cache in the example inputs."""
_PAST, _PRESENT = "past", "present"
_EXAMPLE_IDS = [[1, 2, 3]]
STATE = "state"
"""The parameter of RWKV for its states, and their kind."""
_NEVER = -1e30
"""The exponent of RWKV's sums before the first token, as transformers has it."""
_RECURRENT_BLOCK = "RecurrentGemmaRecurrentBlock"


@dataclass(frozen=True)
class Slot:
    """One tensor of a cache.

    Attributes:
        layer: Index of its layer, or of the state of all layers.
        kind: ``"key"`` or ``"value"``, of which each token adds one, ``"key_scale"`` or
            ``"value_scale"`` of those of few bits; ``"conv"``, the last inputs of a convolution,
            ``"ssm"`` or ``"recurrent"``, the state of a linear attention, or ``"state"``, one of
            those that RWKV has for all layers.
        shape: The shape without the batch; 0 is the length of keys and values.
        dtype: The dtype.
        part: The part of the name before ``key``: ``"encoder."`` or ``"decoder."`` where a model
            has both.
        is_static: Whether keys and values have a fixed capacity, into which each token is written.
    """

    layer: int
    kind: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    part: str = ""
    is_static: bool = False

    @property
    def grows(self) -> bool:
        """Whether each token adds to it: keys and values."""
        return self.kind.startswith(("key", "value"))

    @property
    def past(self) -> str:
        """The name of the input: ``past_key_values.0.key``, ``past_conv.0``."""
        if self.grows:
            return f"{_PAST}_key_values.{self.layer}.{self.part}{self.kind}"
        return f"{_PAST}_{self.kind}.{self.layer}"

    @property
    def present(self) -> str:
        """The name of the output: ``present.0.key``, ``present_conv.0``."""
        if self.grows:
            return f"{_PRESENT}.{self.layer}.{self.part}{self.kind}"
        return f"{_PRESENT}_{self.kind}.{self.layer}"

    def example(self, batch: int, length: int | None = None) -> torch.Tensor:
        """Return zeros, with keys and values of a length, or with a capacity."""
        if length is None:
            length = EXAMPLE_CAPACITY if self.is_static else EXAMPLE_PAST
        return torch.zeros(batch, *(size or length for size in self.shape), dtype=self.dtype)


class Growing(DynamicLayer):
    """Keys and values that grow by those of each call.

    A layer with a sliding window keeps all of them too: its mask hides those outside of the window,
    and all layers have the same length, as the runtimes expect.
    """

    def hold(self, keys: torch.Tensor, values: torch.Tensor) -> None:
        """Take the keys and values of the calls before."""
        self.dtype, self.device = keys.dtype, keys.device
        self.keys, self.values, self.is_initialized = keys, values, True

    def get_seq_length(self) -> int:
        """Return the length, without a test for an empty cache, which would specialize it."""
        assert self.keys is not None
        return self.keys.shape[-2]  # a symbolic size while it is exported


class Static(Growing):
    """Keys and values of a fixed capacity, which attention reads whole, under a mask."""

    filled: Any = 0
    """How many tokens it holds; a symbolic size while it is exported."""

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write the keys and values of the new tokens after those of the calls before."""
        del args, kwargs
        assert self.keys is not None
        assert self.values is not None
        # Out of place: the tensors are inputs of the model, which an export must not change.
        places = torch.arange(key_states.shape[2], device=key_states.device) + self.filled
        self.keys = torch.index_copy(self.keys, 2, places, key_states)
        self.values = torch.index_copy(self.values, 2, places, value_states)
        return self.keys, self.values

    def get_seq_length(self) -> int:
        """Return the number of tokens that it holds."""
        return self.filled  # type: ignore[no-any-return]  # a symbolic size while it is exported

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Return the capacity, and that the first token is at its start."""
        del query_length
        assert self.keys is not None
        return self.keys.shape[2], 0


class _Recurrent(LinearAttentionLayer):
    """States of a layer that are replaced by each call, and not written to."""

    def resume(self, conv: torch.Tensor | None, recurrent: torch.Tensor | None) -> None:
        """Take the states of the calls before; zeros are those of an empty text."""
        if conv is not None:
            self.conv_states[0], self.conv_kernel_size[0] = conv, conv.shape[-1]
            self.is_conv_states_initialized[0] = True
        if recurrent is not None:
            self.recurrent_states[0] = recurrent
            self.is_recurrent_states_initialized[0] = True
        # Without it, transformers takes the branch of a first call, and export sees only that one.
        self.has_previous_state[0] = True

    def update_conv_state(
        self,
        conv_states: torch.Tensor,
        state_idx: int = 0,
        conv_kernel_size: int | None = None,
        **kwargs: Any,
    ) -> torch.Tensor:
        """Return the inputs of the convolution with those before, and keep the last ones."""
        del conv_kernel_size, kwargs
        # transformers copies into its buffer in place; the states here are inputs, which must not
        # change.
        whole = torch.cat([self.conv_states[state_idx], conv_states], dim=-1)
        self.conv_states[state_idx] = whole[..., -self.conv_kernel_size[state_idx] :]
        return whole

    def update_recurrent_state(
        self, recurrent_states: torch.Tensor, state_idx: int = 0, **kwargs: Any
    ) -> torch.Tensor:
        """Keep the state."""
        del kwargs
        self.recurrent_states[state_idx] = recurrent_states
        return recurrent_states


class Both(_Recurrent, LinearAttentionAndFullAttentionLayer, Growing):
    """A layer with both."""

    def __init__(self) -> None:
        LinearAttentionAndFullAttentionLayer.__init__(self)


def slots_of(model: Any, *, is_static: bool = False) -> list[Slot]:
    """Run a decoder on three tokens, and return the slots of its cache.

    Args:
        model: The decoder.
        is_static: Whether keys and values are to have a fixed capacity.

    Raises:
        ConversionError: If a layer keeps something else than keys, values, and one state, or the
            cache is of a class of the model's own; a static cache is for keys and values only.
        ModelSourceError: If the model does not run.
    """
    name, parameter = type(model).__name__, cache_parameter(model)
    if parameter is None:
        if is_static:
            raise ConversionError(f"{name} has no cache", advice='choose cache="growing"')
        return []
    # Before 5.14, such layers run with a cache of the model's own, which annotations may not name.
    types = set(getattr(model.config, "layer_types", None) or ())
    if (cls := _own_cache(model, parameter)) or types & {"conv", "linear_attention"}:
        require_states(name)
    # A cache of a model's own has no layers to find slots in.
    if cls is not None:
        how = "decoders with the caches of transformers.cache_utils are exported, and RWKV"
        raise ConversionError(f"{name} keeps its states in a {cls}, a class of its own", advice=how)

    def run() -> tuple[Any, Any]:
        cache = DynamicCache(config=model.config)
        arguments = {} if parameter == STATE else {parameter: cache}
        return cache, model(input_ids=torch.tensor(_EXAMPLE_IDS), use_cache=True, **arguments)

    # Shapes follow from a call, because no setting of the configurations names them for all models.
    runs = failures_as(ModelSourceError, f"{name} does not run with input_ids and a cache")
    with torch.no_grad(), states_in_cache(model), runs:
        cache, result = run_for_shapes(model, run)
    if "Indexed" in "".join(type(layer).__name__ for layer in cache.layers):
        raise ConversionError(
            f"{name}: a layer keeps the keys of an index beside its cache",
            advice="such models are not exported yet",
        )
    if parameter == STATE:
        states = enumerate(result.state)
        slots = [Slot(i, STATE, tuple(state.shape[1:]), state.dtype) for i, state in states]
    else:
        slots = slots_of_cache(cache, recurrent=_recurrent_kind(model.config))
    if not is_static:
        return slots
    if not all(slot.grows for slot in slots):
        raise ConversionError(
            f"{name}: a static cache holds keys and values, and some layers keep a recurrent state",
            advice='export it with cache="growing"',
        )
    return [replace(slot, is_static=True) for slot in slots]


def slots_of_cache(cache: Any, part: str = "", recurrent: str = "recurrent") -> list[Slot]:
    """Return the slots of a cache, layer by layer.

    Args:
        cache: A cache with the results of a call.
        part: As for `Slot`.
        recurrent: The kind of recurrent states.

    Raises:
        ConversionError: If a layer has several states of one kind.
    """
    slots: list[Slot] = []
    for index, layer in enumerate(cache.layers):
        if isinstance(layer, LinearAttentionLayer):
            require_states(f"layer {index}")
            if layer.number_of_states != 1:
                raise ConversionError(f"layer {index} keeps {layer.number_of_states} states")
            states = {"conv": layer.conv_states[0], recurrent: layer.recurrent_states[0]}
            slots += [
                Slot(index, kind, tuple(state.shape[1:]), state.dtype)
                for kind, state in states.items()
                if state is not None
            ]
        if isinstance(layer, DynamicLayer):
            for kind, x in (("key", layer.keys), ("value", layer.values)):
                slots.append(Slot(index, kind, (x.shape[1], 0, x.shape[3]), x.dtype, part))
    return slots


def cache_of(slots: Sequence[Slot], tensors: Sequence[torch.Tensor], filled: int = 0) -> Any:
    """Return a cache that holds tensors in its slots: a ``DynamicCache``, or RWKV's list of states.

    Args:
        slots: The slots.
        tensors: Their tensors.
        filled: How many tokens a static cache holds.
    """
    if any(slot.kind == STATE for slot in slots):
        return _states_of_rwkv(tensors)
    held: dict[int, dict[str, torch.Tensor]] = {}
    for slot, tensor in zip(slots, tensors, strict=True):
        # A layer may have keys, values and a recurrent state.
        held.setdefault(slot.layer, {})[slot.kind] = tensor
    cache = DynamicCache()
    # Layers that keep nothing still count: models find their layer by its index.
    cache.layers += [_layer(held.get(i, {})) for i in range(max(held, default=-1) + 1)]
    if any(slot.is_static for slot in slots):
        cache.layers = [_static(layer, filled) for layer in cache.layers]
    return cache


def tensors_of(cache: Any, slots: Sequence[Slot]) -> Iterator[torch.Tensor]:
    """Yield the tensors in the slots of a cache."""
    for slot in slots:
        if slot.kind == STATE:
            yield cache[slot.layer]
            continue
        layer = cache.layers[slot.layer]
        if slot.grows:
            yield layer.keys if slot.kind == "key" else layer.values
        else:
            yield layer.conv_states[0] if slot.kind == "conv" else layer.recurrent_states[0]


@contextmanager
def states_in_cache(model: torch.nn.Module) -> Iterator[None]:
    """While active, layers of RecurrentGemma keep their states in the cache.

    Otherwise they keep them in themselves, and begin anew at each call with several tokens.
    """
    layers = {
        module: next(int(part) for part in name.split(".") if part.isdigit())
        for name, module in model.named_modules()
        if type(module).__name__ == _RECURRENT_BLOCK
    }
    if layers:
        require_states(type(model).__name__, in_blocks=True)

    def wrap(_: Any) -> Any:
        return lambda block, *args, **given: _recurrent_block(block, layers[block], *args, **given)

    with ExitStack() as patches:
        for cls in {type(module) for module in layers}:
            patches.enter_context(patched(cls, "forward", wrap))
        yield


def _recurrent_block(
    block: Any, layer: int, x: torch.Tensor, position_ids: torch.Tensor, **given: Any
) -> tuple[torch.Tensor, None]:
    """Compute a recurrent block of RecurrentGemma, with the states of a layer of the cache."""
    cache, length = given[CACHE], x.shape[1]
    gate = block.act_fn(block.linear_y(x))
    inputs = block.linear_x(x).transpose(1, 2)
    before = recurrent_state(cache.layers[layer])
    # The last ``width - 1`` inputs are what a causal convolution reads of earlier calls.
    inputs = cache.update_conv_state(inputs, layer, conv_kernel_size=block.conv1d_width - 1)
    # The convolution pads on both sides: only the results of the new tokens are kept.
    mixed = block.conv_1d(inputs)[..., : inputs.shape[2]][..., -length:]
    block.rg_lru.recurrent_states = before
    outputs = block.rg_lru(mixed.transpose(1, 2), position_ids)
    cache.update_recurrent_state(block.rg_lru.recurrent_states, layer)
    # A state that stays in the block would be found by the next call, of another text.
    block.rg_lru.recurrent_states = None
    return block.linear_out(outputs * gate), None


def cache_parameter(model: torch.nn.Module) -> str | None:
    """Return the name of the parameter of a model that takes its cache, or None."""
    taken = inspect.signature(model.forward).parameters
    return next((n for n in ("past_key_values", "cache_params", CACHE, STATE) if n in taken), None)


def _own_cache(model: torch.nn.Module, parameter: str) -> str | None:
    """Return the name of a model's own cache class, or None if it is one of transformers'."""
    annotation = inspect.signature(model.forward).parameters[parameter].annotation
    classes = [
        x for x in get_args(annotation) if isinstance(x, type) and x.__name__[-5:] == "Cache"
    ]
    return next((x.__name__ for x in classes if not issubclass(x, Cache)), None)


def _layer(held: dict[str, torch.Tensor]) -> Any:
    recurrent = next((held[kind] for kind in ("ssm", "recurrent") if kind in held), None)
    if not held:
        return DummyLayer()
    if "key" not in held:
        layer: Any = _Recurrent()
    else:
        layer = Growing() if len(held) == 2 else Both()
        layer.hold(held["key"], held["value"])
    if isinstance(layer, _Recurrent):
        layer.resume(held.get("conv"), recurrent)
    return layer


def _states_of_rwkv(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Return the states, which the model writes to, with those of zeros as those of an empty text.

    The last one is the exponent of the two sums before it; before the first token, they are zero.
    """
    # The model writes to its states in place, and inputs must not change.
    *others, total, exponent = (x.clone() for x in tensors)
    never = torch.full_like(exponent, _NEVER)
    return [*others, total, torch.where(total == 0, never, exponent)]


def _static(layer: Any, filled: int) -> Any:
    if not isinstance(layer, Growing):
        return layer
    static = Static()
    static.hold(layer.keys, layer.values)
    static.filled = filled
    return static


def _recurrent_kind(config: Any) -> str:
    """Return the name that runtimes have for a recurrent state: that of Mamba is ``ssm``."""
    # Each family of models has a setting of its own for it.
    mamba = ("state_size", "mamba_d_state", "ssm_state_size")
    return "ssm" if any(hasattr(config, name) for name in mamba) else "recurrent"
