"""The signature of a model, and the check of a call against it before onnxruntime runs."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import onnxruntime as ort

from coreai_onnx.errors import InputError
from coreai_onnx.model.contract import Contract, read_contract
from coreai_onnx.model.interface import TensorInfo, as_complex, type_text
from coreai_onnx.model.metadata import (
    Relation,
    StateInfo,
    read_arguments,
    read_complex,
    read_mutated_inputs,
    read_ranges,
    read_relations,
    read_states,
)
from coreai_onnx.runtime.tensors.arguments import ModuleArguments
from coreai_onnx.runtime.tensors.expressions import evaluate, holds, names_in, solve
from coreai_onnx.runtime.tensors.values import ONLY_NUMBERS, dtype_of


@dataclass(frozen=True)
class Range:
    """The sizes that a symbolic dim may have; None means no bound."""

    min: int | None = None
    max: int | None = None

    def __contains__(self, size: int) -> bool:
        """Return whether ``size`` is within the bounds."""
        return (self.min is None or size >= self.min) and (self.max is None or size <= self.max)

    def nearest(self, size: int) -> int:
        """Return the size within the bounds that is nearest to ``size``."""
        size = size if self.min is None else max(size, self.min)
        return size if self.max is None else min(size, self.max)

    def __str__(self) -> str:
        """Return ``between 1 and 8``, ``at least 2`` or ``at most 8``."""
        if self.max is None:
            return f"at least {self.min}"
        return f"at most {self.max}" if self.min is None else f"between {self.min} and {self.max}"


@dataclass(frozen=True)
class Signature:
    """Inputs, outputs and states of a session, in the order of the model.

    Attributes:
        inputs: The inputs of a call, without states.
        outputs: The outputs of a call, without states.
        states: The pairs of graph input and output that carry state.
        state_inputs: Dtype and dims of each state.
        required_states: Names of the states that have no initial value in the file.
        ranges: Bounds of symbolic dims.
        relations: Further conditions on them.
        mutated_inputs: The input that the module changes, by the output with what it wrote.
        new_states: Dtype and dims of the new value of each state, by the state's name.
        optional_inputs: The inputs that have a default value in the file, by name.
        arguments: The arguments of the module, if they are not the inputs in order.
        contract: What the callers of a decoder feed, if the file says so.
    """

    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]
    states: tuple[StateInfo, ...]
    state_inputs: Mapping[str, TensorInfo]
    required_states: frozenset[str]
    ranges: Mapping[str, Range]
    relations: tuple[Relation, ...] = ()
    mutated_inputs: Mapping[str, str] = field(default_factory=dict)
    new_states: Mapping[str, TensorInfo] = field(default_factory=dict)
    optional_inputs: Mapping[str, TensorInfo] = field(default_factory=dict)
    arguments: ModuleArguments | None = None
    contract: Contract | None = None

    @classmethod
    def of(cls, session: ort.InferenceSession) -> Signature:
        """Read the signature of an onnxruntime session and the model's metadata.

        Raises:
            ValueError: The metadata has another form, or names a state that the model does not
                have.
        """
        metadata = session.get_modelmeta().custom_metadata_map
        states, pairs = read_states(metadata), read_complex(metadata)
        olds, news = {state.input for state in states}, {s.output: s.input for s in states}
        inputs = [_info(node, pairs) for node in session.get_inputs()]
        # onnxruntime lists the inputs that have a default in the file apart from the others.
        defaults = [_info(node, pairs) for node in session.get_overridable_initializers()]
        results = [_info(node, pairs) for node in session.get_outputs()]
        if strangers := olds - {info.name for info in (*inputs, *defaults)}:
            raise ValueError(f"the states {sorted(strangers)} are not inputs of the model")
        if unknown := pairs - {info.name for info in (*inputs, *defaults, *results)}:
            raise ValueError(f"{sorted(unknown)} are not inputs or outputs of the model")
        trees = read_arguments(metadata)
        arguments = None if trees is None else ModuleArguments(*trees)
        if arguments and not arguments.inputs <= {info.name for info in (*inputs, *defaults)}:
            arguments = None  # the inputs were renamed
        return cls(
            arguments=arguments,
            contract=read_contract(metadata),
            inputs=tuple(info for info in inputs if info.name not in olds),
            outputs=tuple(info for info in results if info.name not in news),
            states=states,
            state_inputs={info.name: info for info in (*inputs, *defaults) if info.name in olds},
            required_states=frozenset(info.name for info in inputs if info.name in olds),
            mutated_inputs=read_mutated_inputs(metadata),
            new_states={news[info.name]: info for info in results if info.name in news},
            optional_inputs={info.name: info for info in defaults if info.name not in olds},
            ranges={name: Range(*bounds) for name, bounds in read_ranges(metadata).items()},
            relations=read_relations(metadata),
        )

    def bind(self, args: tuple[object, ...], named: Mapping[str, object]) -> dict[str, object]:
        """Return the arguments by the names of their inputs.

        Arguments of the module that are nested or constant are accepted, and so are the inputs of
        the model one by one.

        Raises:
            InputError: If there are too many arguments, or a name is unknown or given twice.
        """
        if self.arguments is None or (not args and self.arguments.names.isdisjoint(named)):
            return self._bound(args, named)
        try:
            return self._bound((), self.arguments.bind(args, named))
        except InputError as error:
            # Only the module takes such a call, so that its error is the one to show.
            if self.arguments.takes(args, named):
                raise
            try:
                return self._bound(args, named)
            except InputError:
                # Both refuse it; the number of arguments tells which of the two the user meant.
                if len(args) == len(self.arguments.positional):
                    raise error from None
                raise

    def _bound(self, args: tuple[object, ...], named: Mapping[str, object]) -> dict[str, object]:
        if len(args) > len(self.inputs):
            raise InputError(
                f"{len(args)} positional inputs given, {len(self.inputs)} expected\n"
                f"{self._expected()}"
            )
        bound = dict(zip((info.name for info in self.inputs), args, strict=False))
        for name, value in named.items():
            if name in bound:
                raise InputError(
                    f"input {name!r} is given twice, by position and by name\n{self._expected()}"
                )
            if name not in self._infos:
                raise InputError(f"unexpected input {name!r}\n{self._expected()}")
            bound[name] = value
        return bound

    def require(self, *names: Mapping[str, object]) -> None:
        """Check that every input, and every state without an initial value, is a key of ``names``.

        Raises:
            InputError: If some are missing; the message names all of them.
        """
        if missing := self._required.difference(*names):
            listed = [name for name in self._infos if name in missing]
            what = "input" if len(listed) == 1 else "inputs"
            raise InputError(f"missing {what} {', '.join(map(repr, listed))}\n{self._expected()}")

    def info(self, name: str) -> TensorInfo:
        """Return the expected dtype and dims of an input or state."""
        return self._infos[name]

    def states_of(self, names: Iterable[str]) -> Mapping[str, TensorInfo]:
        """Return the states by name.

        Raises:
            InputError: If the model does not have one of them.
        """
        for name in names:
            if name not in self.state_inputs:
                there = ", ".join(self.state_inputs) or "none"
                raise InputError(f"the model has no state {name!r}; there are {there}")
        return self.state_inputs

    @cached_property
    def _required(self) -> frozenset[str]:
        return self.required_states.union(info.name for info in self.inputs)

    @cached_property
    def _infos(self) -> dict[str, TensorInfo]:
        inputs = {info.name: info for info in self.inputs}
        return {**inputs, **self.state_inputs, **self.optional_inputs}

    def check(
        self, types: Mapping[str, tuple[str, tuple[int, ...]]], carried: Collection[str]
    ) -> dict[str, int]:
        """Check dtypes, ranks and dims; a symbolic dim must have one size throughout the call.

        Bounds of dims and conditions on several of them must hold.

        Args:
            types: Name to (dtype name, shape).
            carried: Names of the states that are carried from the previous call.

        Returns:
            The sizes of the symbolic dims.

        Raises:
            InputError: If a check fails; the message names the input, its actual and its expected
                type.
        """
        return _CallCheck(self, types, carried).sizes

    def check_contract(self, arrays: Mapping[str, Any]) -> None:
        """Check that the inputs of a decoder are those that its file was written for.

        Raises:
            InputError: If one is not; the message names it and says what to do.
        """
        fault = None if self.contract is None else self.contract.fault(arrays)
        if fault is not None:
            name, what, advice = fault
            raise InputError(f"input {name!r} {what}; {advice}")

    def example_sizes(self, sizes: Mapping[str, int], default: int) -> dict[str, int]:
        """Return a size for every symbolic dim of the inputs; see `Session.example_sizes`."""
        filled = dict(sizes)
        dims = [dim for info in self.inputs for dim in info.dims if isinstance(dim, str)]
        # Names first, because the sizes of expressions follow from them.
        for name in (dim for dim in dims if dim.isidentifier()):
            filled.setdefault(name, self.ranges.get(name, Range()).nearest(default))
        for expression in (dim for dim in dims if not dim.isidentifier()):
            size = evaluate(expression, filled)
            filled.setdefault(expression, default if size is None else size)
        return filled

    def _expected(self) -> str:
        lines = [f"  expected  {info}" for info in self.inputs] or ["  expected  no inputs"]
        lines += [f"  state     {info}" for info in self.state_inputs.values()]
        return "\n".join(lines)


class _CallCheck:
    """The check of one call.

    Attributes:
        sizes: The sizes of the symbolic dims so far.
    """

    def __init__(
        self,
        signature: Signature,
        types: Mapping[str, tuple[str, tuple[int, ...]]],
        carried: Collection[str],
    ) -> None:
        """Check the call."""
        self._signature, self._types, self._carried = signature, types, carried
        self.sizes: dict[str, int] = {}
        # The input and the axis that a size was read from.
        self._origins: dict[str, tuple[str, int]] = {}
        expressions: list[tuple[str, int, int, str]] = []
        for name, (dtype, shape) in types.items():
            info = signature.info(name)
            if dtype != info.dtype:
                what = f"dtype is {dtype}, expected {info.dtype}"
                raise self._error(name, what, _advice(dtype, info))
            if len(shape) != len(info.dims):
                raise self._error(name, f"rank is {len(shape)}, expected {len(info.dims)}")
            for axis, (size, dim) in enumerate(zip(shape, info.dims, strict=True)):
                if isinstance(dim, str):
                    self._bind(name, axis, size, dim)
                    if not dim.isidentifier():
                        expressions.append((name, axis, size, dim))
                elif dim is not None and size != dim:
                    raise self._error(name, f"dimension {axis} is {size}, expected {dim}")
        # Last, because an input that comes later may have the name that an expression needs.
        for expression in expressions:
            self._solve(*expression)
        for name, axis, size, text in expressions:
            expected = evaluate(text, self.sizes)
            if expected is not None and expected != size:
                raise self._error(name, f"dimension {axis} is {size}, expected {text} = {expected}")
        for relation in signature.relations:
            self._check_relation(relation)

    def _bind(self, name: str, axis: int, size: int, dim: str) -> None:
        bounds = self._signature.ranges.get(dim)
        if bounds is not None and size not in bounds:
            raise self._error(name, f"dimension {axis} ({dim}) is {size}, expected {bounds}")
        if self.sizes.setdefault(dim, size) != size:
            origin = repr(self._origins[dim][0])
            expected = f"{dim} = {self.sizes[dim]} (from {origin})"
            raise self._error(name, f"dimension {axis} is {size}, expected {expected}")
        self._origins.setdefault(dim, (name, axis))

    def _solve(self, name: str, axis: int, size: int, text: str) -> None:
        """Solve an expression such as ``2*seq`` for a name that is not itself a dim."""
        solution = solve(text, size)
        if solution is None or solution[0] in self.sizes:
            return
        dim, value = solution
        if value.denominator != 1 or value < 0:
            what = f"dimension {axis} is {size}, but no integer {dim} gives {text} = {size}"
            raise self._error(name, what)
        bounds = self._signature.ranges.get(dim)
        if bounds is not None and int(value) not in bounds:
            what = f"dimension {axis} is {size}, so that {dim} is {int(value)}, expected {bounds}"
            raise self._error(name, what)
        self._bind(name, axis, int(value), dim)

    def _check_relation(self, relation: Relation) -> None:
        if holds(relation.holds, self.sizes) is not False:
            return
        origins = {n: self._origins[n] for n in names_in(relation.holds) if n in self._origins}
        sizes = ", ".join(
            f"{dim} is {self.sizes[dim]} (dimension {axis} of {name!r})"
            for dim, (name, axis) in origins.items()
        )
        source = f"asked for by {relation.source}" if relation.source else ""
        *_, (last, _) = origins.values()
        raise self._error(last, f"{sizes}; expected {relation.holds}", source)

    def _error(self, name: str, what: str, advice: str = "") -> InputError:
        kind, origin = "input", ""
        if name in self._carried:
            kind, origin = "state", ", carried from the call before"
            advice = "reset() returns every state to its initial value"
        lines = [
            f"{kind} {name!r}{origin}: {what}",
            f"  got       {type_text(*self._types[name])}",
            f"  expected  {self._signature.info(name).type_text}",
        ]
        return InputError("\n".join([*lines, f"  {advice}"] if advice else lines))


def _info(node: ort.NodeArg, pairs: frozenset[str]) -> TensorInfo:
    info = TensorInfo(node.name, dtype_of(node.type), tuple(node.shape))
    return as_complex(info) if info.name in pairs else info


def _advice(dtype: str, info: TensorInfo) -> str:
    """Return advice on the expected dtype; a cast that drops the imaginary part is not advised."""
    if dtype.startswith("complex") and not info.is_complex:
        return "the input is real: give tensor.real, tensor.abs() or torch.view_as_real(tensor)"
    if info.dtype == "string":
        return ONLY_NUMBERS
    cast = f"cast it: tensor.to(torch.{info.dtype}) or array.astype({info.numpy_dtype!r})"
    if info.is_complex and not dtype.startswith("complex"):
        return f"{cast}; pairs of numbers: torch.view_as_complex(tensor)"
    return cast
