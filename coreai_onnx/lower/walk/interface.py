"""The names of a program's inputs, outputs and states, assigned before all other names."""

from __future__ import annotations

import dataclasses
import json
import re
from collections import Counter, OrderedDict, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from torch.export import ExportedProgram
from torch.export.graph_signature import ConstantArgument, InputKind, InputSpec, OutputKind

from coreai_onnx.errors import ConversionError
from coreai_onnx.export.capture.io_names import output_names
from coreai_onnx.export.compat.torch_names import pytree
from coreai_onnx.lower.nodes.scope import Names
from coreai_onnx.model.metadata import ArgumentTree


@dataclass(frozen=True)
class IONames:
    """User-defined names of inputs, outputs and states; None or empty for the defaults."""

    inputs: Sequence[str] | None = None
    outputs: Sequence[str] | None = None
    states: Sequence[str] | None = None


@dataclass(frozen=True)
class ProgramInterface:
    """The names in the file.

    Attributes:
        inputs: The name of each placeholder that is a user input and not a state.
        states: The name of each placeholder that is a state, mutated buffers before mutated inputs.
        outputs: The names of the user outputs, in order.
        new_values: The name of the output with the new value, by the name of a state or of a
            mutated input.
    """

    inputs: dict[str, str]
    states: dict[str, str]
    outputs: list[str]
    new_values: dict[str, str]


def interface(program: ExportedProgram, requested: IONames, names: Names) -> ProgramInterface:
    """Return the names of inputs, outputs and states, and reserve them.

    User-defined names are used verbatim; default names are made unique.

    Args:
        program: The exported program.
        requested: Names from the user.
        names: The names of the graph, still empty.

    Raises:
        ConversionError: If there are too many or too few names, or a name is empty or duplicated.
    """
    mutated = _mutated(program)
    specs = program.graph_signature.input_specs
    mutated_inputs = [s.arg.name for s in specs if _is_live(s) and s.arg.name in mutated]
    carried = _carried(mutated, mutated_inputs, requested.states)
    live = [s.arg.name for s in specs if _is_live(s) and s.arg.name not in carried]
    count = sum(map(_is_output, program.graph_signature.output_specs))
    _check_count("live inputs", len(live), requested.inputs)
    _check_count("live outputs", count, requested.outputs)
    states = list(requested.states or [])
    new_states = [f"{state}_out" for state in states]
    _check_names([*states, *(requested.inputs or []), *(requested.outputs or []), *new_states])
    # Before any default name is made: a clash gives that one a number, not the user's name.
    for name in (*states, *(requested.inputs or []), *(requested.outputs or []), *new_states):
        names.unique(name)

    inputs = list(requested.inputs or (names.unique(name) for name in live))
    # After the inputs, so that a clash leaves the names of the parameters of forward alone.
    states = states or [names.unique(name) for name in carried.values()]
    outputs = list(requested.outputs or map(names.unique, output_names(program, count)))
    new_states = new_states or [names.unique(f"{state}_out") for state in states]
    by_placeholder = dict(zip(live, inputs, strict=True))
    changed = [by_placeholder[name] for name in mutated_inputs if name not in carried]
    new_inputs = {name: names.unique(f"{name}_out") for name in changed}
    return ProgramInterface(
        inputs=by_placeholder,
        states=dict(zip(carried, states, strict=True)),
        outputs=outputs,
        new_values=dict(zip(states, new_states, strict=True)) | new_inputs,
    )


def _carried(
    mutated: dict[str, str], inputs: Sequence[str], names: Sequence[str] | None
) -> dict[str, str]:
    """Return the placeholders that are states: all buffers; inputs only if they are given names.

    Args:
        mutated: All mutated placeholders with their default names, buffers first.
        inputs: Those that are user inputs.
        names: The names of the states from the user.
    """
    buffers = {key: name for key, name in mutated.items() if key not in inputs}
    # A string has a length as well; _check_count rejects it below.
    if not names or (len(names) == len(buffers) and not isinstance(names, str)):
        return buffers
    _check_count("stateful inputs", len(mutated), names)
    return mutated


def _mutated(program: ExportedProgram) -> dict[str, str]:
    """Return the placeholders of all mutated buffers and inputs, with their default names."""
    signature = program.graph_signature
    placeholders = {s.target: s.arg.name for s in signature.input_specs if s.target}
    mutated: dict[str, str] = {}
    for spec in signature.output_specs:
        if spec.kind == OutputKind.BUFFER_MUTATION:
            mutated[placeholders[spec.target]] = str(spec.target)
        elif spec.kind == OutputKind.USER_INPUT_MUTATION:
            mutated[str(spec.target)] = str(spec.target)
    return mutated


def _is_live(spec: InputSpec) -> bool:
    """Whether a user input is an input of the graph, and not a constant that is baked in."""
    return spec.kind == InputKind.USER_INPUT and not isinstance(spec.arg, ConstantArgument)


def _is_output(spec: object) -> bool:
    """Whether a user output is an output of the graph; None and strings are not."""
    kind, arg = getattr(spec, "kind", None), getattr(spec, "arg", None)
    if kind != OutputKind.USER_OUTPUT:
        return False
    return not isinstance(arg, ConstantArgument) or isinstance(arg.value, int | float | bool)


def _check_count(what: str, count: int, names: Sequence[str] | None) -> None:
    if isinstance(names, str):
        raise ConversionError(f"the names of {what} must be a list, not the string {names!r}")
    if names and len(names) != count:
        raise ConversionError(
            f"Graph has {count} {what}, but {len(names)} names were given: {list(names)}",
            advice=f"give {count} names, or none for the defaults",
        )


def _check_names(names: Sequence[str]) -> None:
    """Check user-defined names; a state has two, its own and that of its new value."""
    empty = [name for name in names if not (isinstance(name, str) and name.strip())]
    if empty:
        raise ConversionError(f"{empty[0]!r} is not a name for an input, output or state")
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise ConversionError(
            f"duplicate names among inputs, outputs and states: {', '.join(twice)}",
            advice="give every input, output and state a different name; "
            "the new value of the state s is the output s_out",
        )


# ---------------------------------------------------------------------- arguments
_JSON_VALUES = (bool, int, float, str, type(None))


def arguments_entry(program: ExportedProgram, names: ProgramInterface) -> str:
    """Return the metadata ``ARGUMENTS`` of a program.

    Returns:
        Empty if the arguments are tensors, or contain objects whose fields are not known.
    """
    tree = program.call_spec.in_spec
    specs = [s for s in program.graph_signature.input_specs if s.kind == InputKind.USER_INPUT]
    # Graph passes may change the inputs of a program without its call spec.
    if tree is None or tree.num_leaves != len(specs):
        return ""
    leaves = iter(specs)
    positional, keyword = tree.children()
    try:
        places = [_argument(child, leaves, names) for child in positional.children()]
        named = [_argument(child, leaves, names)[1] for child in keyword.children()]
    except TypeError:
        return ""
    pairs = [*map(list, places)], [*map(list, zip(keyword.context, named, strict=True))]
    # For plain tensors, the names of the inputs say everything.
    if all(isinstance(tree, str) for entries in pairs for _, tree in entries):
        return ""
    entry = {key: one for key, one in zip(("positional", "keyword"), pairs, strict=True) if one}
    return json.dumps(entry)


def _argument(
    tree: pytree.TreeSpec, leaves: Iterator[InputSpec], names: ProgramInterface
) -> tuple[str, ArgumentTree]:
    """Return the name of a positional parameter and its tree.

    torch names a placeholder by the parameter and the keys that lead to it; the parameter itself is
    recorded nowhere else.
    """
    used: list[tuple[str, str]] = []

    def visit(node: pytree.TreeSpec, path: str) -> ArgumentTree:
        children = node.children()
        if node.is_leaf():
            spec = next(leaves)
            used.append((spec.arg.name, path))
            return _leaf(spec, names)
        kind, context = node.type, node.context
        named = pytree.is_namedtuple_class(context)  # the type of any named tuple is the function
        if named or kind in (list, tuple, deque):
            fields = context._fields if named else range(len(children))
            pairs = zip(children, fields, strict=True)
            return [visit(child, f"{path}_{key}") for child, key in pairs]
        if kind in (dict, OrderedDict) and all(isinstance(key, str | int) for key in context):
            pairs = zip(context, children, strict=True)
            return {"items": [[key, visit(child, f"{path}_{key}")] for key, child in pairs]}
        if dataclasses.is_dataclass(kind) and len(context) == 2:
            # torch.export.register_dataclass omits the fields that are None from the leaves.
            filled, absent = context
            pairs = zip(filled, children, strict=True)
            fields = {key: visit(child, f"{path}_{key}") for key, child in pairs}
            return {"fields": fields | {key: {"value": None} for key in absent}}
        raise TypeError(f"{kind} has no form as JSON")

    json_tree = visit(tree, "")
    placeholder, path = used[0] if used else ("", "")
    # torch makes names of placeholders in the same way from parameters and keys.
    suffix = re.sub("[^a-z0-9_]", "_", path.lower())
    return placeholder.removesuffix(suffix) if placeholder.endswith(suffix) else "", json_tree


def _leaf(spec: InputSpec, names: ProgramInterface) -> ArgumentTree:
    name = names.inputs.get(spec.arg.name) or names.states.get(spec.arg.name)
    if name is not None:
        return name
    value = getattr(spec.arg, "value", None)
    if isinstance(value, _JSON_VALUES):
        return {"value": value}
    raise TypeError(f"{type(value)} has no form as JSON")
