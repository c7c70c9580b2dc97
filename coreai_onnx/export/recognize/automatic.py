"""Finds known building blocks in a model, checks them, and replaces them during the export."""

from __future__ import annotations

import contextlib
import copy
import functools
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from types import FunctionType
from typing import Any

import torch
from torch.export import ExportedProgram

from coreai_onnx.export.compat import experts, linear_attention
from coreai_onnx.export.compat.patches import exchanged, patched
from coreai_onnx.export.externalize.equivalence import EQUIVALENCE_KEY, equivalence_key
from coreai_onnx.export.recognize.blocks import Block, Recognition
from coreai_onnx.export.recognize.functions import function_block
from coreai_onnx.export.recognize.norms import norm_block
from coreai_onnx.export.recognize.numeric_probe import RAISES, first_line


@dataclass(eq=False)
class _Place:
    """The dictionary entry that holds a block's function, and the original function."""

    block: Block
    registry: dict[str, Any]
    name: str
    original: Callable[..., Any]


@dataclass(eq=False)
class Automatic:
    """The blocks of a model that composites may replace.

    A block is a module that has the structure and the results of a norm, or a function that the
    modules' forwards look up: a rotary embedding, or an eager attention function. Experts and
    gated delta rules, which are always exported as composites, are checked with them.

    Args:
        model: The model.
        skip: Classes that the user externalizes under other names.
    """

    model: torch.nn.Module
    skip: Sequence[type] = ()
    report: Recognition = field(default_factory=Recognition)
    _places: list[_Place] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Find the blocks, and test their replacements on random inputs."""
        for path, module in self.model.named_modules():
            # A forward on the instance is another library's or the user's; the class does not
            # define it.
            if not isinstance(module, tuple(self.skip)) and "forward" not in vars(module):
                self._keep(norm_block(path, module), vars(module), "forward", module.forward)
        for home in _homes(self.model):
            for name, function in list(home.items()):
                block = function_block(f"{home['__name__']}.{name}", name, function)
                self._keep(block, home, name, function)

    def _keep(
        self, block: Block | None, registry: dict[str, Any], name: str, original: Any
    ) -> None:
        if block is not None:
            self.report.blocks.append(block)
            self._places.append(_Place(block, registry, name, original))

    @contextlib.contextmanager
    def patched(self) -> Iterator[None]:
        """While active, the blocks that are not refused are replaced."""
        with contextlib.ExitStack() as places:
            for place in self._places:
                if not place.block.reason:
                    places.enter_context(_in_place(place, _replaced(place)))
            yield

    def refuses(self, program: ExportedProgram) -> bool:
        """Run the model on the program's example inputs, and compare every block that it calls.

        Returns:
            Whether a block was refused whose replacement is in the program.
        """
        before = len(self.report.refused)
        for block in self.report.blocks:
            # Calls are counted per run; a refused block keeps those of the run that refused it.
            block.calls = block.calls if block.reason else 0
        if program.example_inputs is None:
            for place in self._places:
                place.block.refuse("the exported program has no example inputs to check it on")
            return len(self.report.refused) > before
        # The run may write to its arguments, such as a cache.
        args, kwargs = copy.deepcopy(program.example_inputs)
        with contextlib.ExitStack() as places, torch.no_grad():
            for place in self._places:
                if not place.block.reason:
                    places.enter_context(_in_place(place, _observed(place.block, place.original)))
            if self.trusts("gather_mm"):
                places.enter_context(_observed_experts(self.model, self.report))
            if self.trusts("gated_delta_update"):
                places.enter_context(_observed_loops(self.model, self.report))
            places.enter_context(_kept_state(self.model))
            self.model(*args, **kwargs)
        return len(self.report.refused) > before

    def trusts(self, composite: str) -> bool:
        """Whether no block with this composite was refused on the example inputs."""
        return not any(b.composite == composite for b in self.report.refused)


def _homes(model: torch.nn.Module) -> list[dict[str, Any]]:
    """Return the globals of every forward in a model, except torch's own."""
    homes: dict[int, dict[str, Any]] = {}
    for module in model.modules():
        forward: Any = inspect.unwrap(getattr(type(module), "forward", module))
        home = getattr(forward, "__globals__", {})
        if str(home.get("__name__", "torch")).partition(".")[0] != "torch":
            homes[id(home)] = home
    return list(homes.values())


# ---------------------------------------------------------------------- replacements
def _in_place(place: _Place, stand_in: Callable[..., Any]) -> AbstractContextManager[None]:
    """Replace a function: the forward of one module, or a global of a Python module."""
    if isinstance(place.original, FunctionType):
        return patched(place.registry, place.name, lambda _: stand_in)
    return exchanged(place.registry, place.name, stand_in)


def _replaced(place: _Place) -> Callable[..., Any]:
    block, original = place.block, place.original

    @functools.wraps(original)
    def stand_in(*args: Any, **kwargs: Any) -> Any:
        if not block.reason:
            try:
                return block.replacement(*args, **kwargs)
            except RAISES as error:
                block.refuse(f"the replacement does not take its arguments ({first_line(error)})")
        return original(*args, **kwargs)

    # Equal layers share one exported body only if their replacements count as equal.
    vars(stand_in)[EQUIVALENCE_KEY] = (
        "recognized",
        block.composite,
        block.meaning,
        _code(original),
    )
    vars(stand_in)["__signature__"] = inspect.signature(original)
    return stand_in


def _code(original: Callable[..., Any]) -> Any:
    """Return a key that is equal for two modules with the same forward."""
    return equivalence_key(getattr(original, "__func__", original))


def _observed(block: Block, original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def stand_in(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        block.check(result, args, kwargs)
        return result

    vars(stand_in)["__signature__"] = inspect.signature(original)
    return stand_in


@contextlib.contextmanager
def _kept_state(model: torch.nn.Module) -> Iterator[None]:
    """Restore the buffers of a model and torch's random state on exit."""
    registries: list[dict[str, Any]] = [vars(module)["_buffers"] for module in model.modules()]
    before = [(registry, dict(registry)) for registry in registries]
    values = [(b, b.clone()) for b in model.buffers()]
    # Of the CPU only: to fork the generators of GPUs would initialize CUDA.
    with torch.random.fork_rng(devices=[]):
        try:
            yield
        finally:
            for registry, tensors in before:
                # A forward may replace a buffer, or write to it, which the loop below undoes.
                registry.update(tensors)
            for buffer, value in values:
                buffer.copy_(value)


# ---------------------------------------------------------------------- always replaced
@contextlib.contextmanager
def _observed_experts(model: torch.nn.Module, report: Recognition) -> Iterator[None]:
    """While active, compare the experts of transformers with their ``gather_mm`` replacement."""
    paths = {id(module): path for path, module in model.named_modules()}
    blocks: dict[int, Block] = {}

    def exchange(_: str | None, original: Callable[..., Any]) -> Callable[..., Any]:
        def observed(self: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(self, *args, **kwargs)
            # One row of the report per module, with all of its calls.
            if id(self) not in blocks:
                replacement = experts.experts_forward(original)
                place = paths.get(id(self), "")
                blocks[id(self)] = Block(place, type(self).__name__, "gather_mm", replacement)
                report.blocks.append(blocks[id(self)])
            blocks[id(self)].check(result, (self, *args), kwargs)
            return result

        return observed

    with experts.exchanged_experts(exchange) as exchangeable:
        if exchangeable:
            report.blocks[:] = [b for b in report.blocks if b.composite != "gather_mm"]
        yield


@contextlib.contextmanager
def _observed_loops(model: torch.nn.Module, report: Recognition) -> Iterator[None]:
    """While active, compare the gated delta rules of transformers with ``gated_delta_update``."""
    report.blocks[:] = [b for b in report.blocks if b.composite != "gated_delta_update"]
    with contextlib.ExitStack() as places:
        for home in _homes(model):
            for name in linear_attention.LOOPING:
                original = home.get(name)
                if original is None:
                    continue
                replacement = linear_attention.replacement_of(original)
                place = f"{home['__name__']}.{name}"
                block = Block(place, name, "gated_delta_update", replacement)
                report.blocks.append(block)
                stand_in = _observed(block, original)
                places.enter_context(_in_place(_Place(block, home, name, original), stand_in))
        yield


def wants(externalize_modules: Any) -> tuple[bool, list[Any]]:
    """Return whether ``"auto"`` was requested, and the remaining targets.

    Args:
        externalize_modules: None, ``"auto"``, or a list that may have ``"auto"`` in it.
    """
    if externalize_modules is None:
        return False, []
    if isinstance(externalize_modules, str):
        externalize_modules = [externalize_modules]
    if isinstance(externalize_modules, Mapping) or not isinstance(externalize_modules, Sequence):
        raise TypeError(
            'externalize_modules must be "auto" or a list of module classes and ExternalizeSpecs, '
            f"not {externalize_modules!r}"
        )
    rest = [t for t in externalize_modules if not (isinstance(t, str) and t == "auto")]
    return len(rest) < len(externalize_modules), rest
