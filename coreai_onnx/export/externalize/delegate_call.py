"""The op that represents a call of a delegated part in an exported program."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakValueDictionary

import sympy
import torch
from torch import fx
from torch.export import ExportedProgram

from coreai_onnx.errors import DelegationError, InputError
from coreai_onnx.export.compat.torch_names import (
    PythonReferenceAnalysis,
    detect_fake_mode,
    sympy_interp,
)
from coreai_onnx.export.externalize.module_call import unshared
from coreai_onnx.export.functionalize.replaced_graph import nodes_of


@dataclass(eq=False)
class Delegate:
    """A part of a program that a backend has processed.

    Attributes:
        backend_id: The backend; also the domain of the part's function.
        program: The part itself.
        processed_bytes: What the backend made of it.
        compile_specs: The settings that the backend was given, by key.
        version: The version of the backend that made the bytes.
        holds_weights: Whether the bytes contain the values of the weights.
        debug_handle_map: The backend's own numbers to debug handles of the operators.
        tag: Unique text, by which the op finds the delegate.
    """

    backend_id: str
    program: ExportedProgram
    processed_bytes: bytes
    compile_specs: tuple[tuple[str, bytes], ...] = ()
    version: str = ""
    holds_weights: bool = True
    debug_handle_map: Mapping[Any, Sequence[int]] = field(default_factory=dict)
    tag: str = field(init=False)

    def __post_init__(self) -> None:
        """Give the delegate a tag."""
        self.tag = f"{self.backend_id}#{next(_counter)}"
        _DELEGATES[self.tag] = self

    @property
    def placeholders(self) -> list[fx.Node]:
        """The inputs of the part, weights included."""
        return [node for node in self.program.graph.nodes if node.op == "placeholder"]

    @property
    def operators(self) -> list[fx.Node]:
        """The operators of the part, those of its branches and loops included."""
        nodes = nodes_of(self.program.graph_module)
        return [node for node in nodes if node.op == "call_function"]

    @property
    def weights(self) -> list[torch.Tensor]:
        """The values of the weights, which are the first inputs."""
        values = {**self.program.state_dict, **self.program.constants}
        specs = self.program.graph_signature.input_specs
        return [values[spec.target] for spec in specs if spec.target is not None]

    def check(self, values: Sequence[Any]) -> None:
        """Check inputs, weights included, against those that the bytes were made for.

        Args:
            values: A value for each placeholder; tensors may be fake, with symbolic sizes.

        Raises:
            InputError: If a dtype, a rank or a size differs, or a size is out of its range.
        """
        sizes: list[tuple[fx.Node, Any, Any, Any]] = []
        for node, value in zip(self.placeholders, values, strict=True):
            declared = node.meta["val"]
            if not isinstance(declared, torch.Tensor):
                sizes.append((node, value, declared, value))
                continue
            if declared.dtype != value.dtype or declared.dim() != value.dim():
                raise self._unfit(node, value)
            pairs = zip(declared.shape, value.shape, strict=True)
            sizes += ((node, value, first, second) for first, second in pairs)
        symbols = _symbols(sizes)
        for node, value, declared, size in sizes:
            expected = _evaluated(declared, symbols)
            if expected is not None:
                self._require(expected == size, node, value)
        for node, value, declared, size in sizes:
            for least, most in self._bounds(declared):
                self._require(size >= least, node, value)
                self._require(size <= most, node, value)

    def _bounds(self, size: Any) -> Iterator[tuple[int, float]]:
        """Yield the least and the largest value of a symbolic size, if it is bounded.

        torch assumes that every symbolic size is at least 2, and does not check it either.
        """
        bounds = self.program.range_constraints.get(_expression(size))
        if bounds is not None:
            lower, upper = bounds.lower, bounds.upper
            least = int(lower) if lower.is_Integer and lower > _ASSUMED_LEAST else 0
            yield least, int(upper) if upper.is_Integer else float("inf")

    def _require(self, fits: Any, node: fx.Node, value: Any) -> None:
        """Raise unless a condition holds; a condition on unknown sizes is checked at run time."""
        if isinstance(fits, torch.SymBool) and not fits.node.has_hint():
            torch._check(fits, lambda: str(self._unfit(node, value)))
        elif not fits:
            raise self._unfit(node, value)

    def _unfit(self, node: fx.Node, value: Any) -> InputError:
        declared = node.meta["val"]
        named = {str(size): size for size in getattr(declared, "shape", (declared,))}
        bounded = ((name, *bounds) for name, size in named.items() for bounds in self._bounds(size))
        ranges = "".join(f", {name} in [{least}, {most}]" for name, least, most in bounded)
        return InputError(
            f"the part {self.tag} was processed for {node.name}: {_text(declared)}{ranges}, "
            f"not {_text(value)}\n  process it for these sizes, or with dynamic_shapes"
        )


_ASSUMED_LEAST = 2
_counter: Iterator[int] = itertools.count()
# Weak, so that a delegate is freed with its programs, which hold it (see `_own`).
_DELEGATES: WeakValueDictionary[str, Delegate] = WeakValueDictionary()
# A fragment, because module_call.py defines the namespace.
_library = torch.library.Library("coreai_onnx", "FRAGMENT")
_library.define("delegate(Tensor[] tensors, SymInt[] numbers, str tag) -> Tensor[]")
DELEGATE = torch.ops.coreai_onnx.delegate.default


def delegate_of(tag: str) -> Delegate:
    """Return the delegate of a tag.

    Raises:
        DelegationError: If it no longer exists.
    """
    delegate = _DELEGATES.get(tag)
    if delegate is None:
        raise DelegationError(
            f"the delegated part {tag} no longer exists\n"
            "  files of torch.export do not store delegated parts: save the result of finish()"
        )
    return delegate


def is_number(node: fx.Node) -> bool:
    """Whether an input of a part is a symbolic number."""
    return isinstance(node.meta.get("val"), torch.SymInt | int)


def _symbols(sizes: Sequence[tuple[fx.Node, Any, Any, Any]]) -> dict[sympy.Symbol, Any]:
    """Return the values of the symbols of a part, from the sizes that it is called with."""
    values: dict[sympy.Symbol, Any] = {}
    # A symbol that is itself a size is read there; expressions are solved only for the others.
    derived = []
    for _, _, declared, size in sizes:
        expression = _expression(declared)
        if isinstance(expression, sympy.Symbol):
            values.setdefault(expression, size)
        elif expression is not None and len(expression.free_symbols) == 1:
            derived.append((expression, size))
    for expression, size in derived:
        (symbol,) = expression.free_symbols
        factor, rest = expression.coeff(symbol, 1), expression.coeff(symbol, 0)
        if symbol not in values and expression == factor * symbol + rest:  # torch derives such dims
            values[symbol] = (size - int(rest)) // int(factor)
    return values


def _evaluated(size: Any, values: Mapping[sympy.Symbol, Any]) -> Any:
    """Return the value of a size of a part; None if it has unknown symbols."""
    expression = _expression(size)
    if expression is None:
        return size
    if not expression.free_symbols <= values.keys():
        return None
    return sympy_interp(PythonReferenceAnalysis, dict(values), expression)


def _expression(size: Any) -> sympy.Expr | None:
    return size.node.expr if isinstance(size, torch.SymInt) else None


def _text(value: Any) -> str:
    if not isinstance(value, torch.Tensor):
        return str(value)
    return f"{str(value.dtype).removeprefix('torch.')}[{', '.join(map(str, value.shape))}]"


def _run_delegate(
    tensors: Sequence[torch.Tensor], numbers: Sequence[Any], tag: str
) -> list[torch.Tensor]:
    delegate = delegate_of(tag)
    # Only an exported program may outlive the module that holds the delegate.
    if torch.compiler.is_exporting():
        _own(delegate, tensors)
    rest = iter(tensors), iter(numbers)
    arguments = [next(rest[is_number(node)]) for node in delegate.placeholders]
    delegate.check(arguments)
    results = fx.Interpreter(delegate.program.graph_module).run(*arguments)
    return unshared(list(results), tensors)


def _own(delegate: Delegate, tensors: Sequence[torch.Tensor]) -> None:
    """Keep a delegate as long as the programs that are exported with it.

    All fake tensors of a program refer to one mode, so what the mode refers to lives as long as the
    program and its copies; the tag in the graph is only text.
    """
    mode = detect_fake_mode(tensors)
    if mode is not None:
        vars(mode).setdefault("coreai_onnx_delegates", {})[delegate.tag] = delegate


torch.library.impl(_library, "delegate", "CompositeExplicitAutograd")(_run_delegate)
torch.library.register_fake("coreai_onnx::delegate", _run_delegate, lib=_library)
