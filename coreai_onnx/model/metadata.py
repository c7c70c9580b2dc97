"""The metadata of a model, and models that adopt a changed copy.

The functions that read an entry raise a ValueError if it has another form.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from io import BytesIO
from typing import TYPE_CHECKING, Any, BinaryIO

if TYPE_CHECKING:  # as in interface.py
    import onnx_ir as ir

MAIN = "main"
"""Default name of an entrypoint."""
ENTRYPOINT = "coreai.entrypoint"
"""Model metadata: the name of the program."""
STATES = "coreai.states"
"""Model metadata: a JSON list of ``{"input": ..., "output": ...}``."""
MUTATED_INPUTS = "coreai.mutated_inputs"
"""Model metadata: the inputs that the module changes and the outputs with what it wrote, a JSON
list of ``{"input": ..., "output": ...}``."""
RANGES = "coreai.range_constraints"
"""Model metadata: bounds of symbolic dims, ``{"seq": {"min": 1, "max": 64}}``."""
RELATIONS = "coreai.relations"
"""Model metadata: further conditions on dims, a JSON list of ``{"holds": "(seq % 8) == 0"}``."""
RELATION_LIMIT = 4096
"""Maximum number of characters of a condition; the converter writes about a hundred."""
COMPLEX = "coreai.complex"
"""Model metadata: a JSON list of the inputs and outputs that are complex, stored as pairs."""
ARGUMENTS = "coreai.arguments"
"""Model metadata: the arguments of the module, unless they are the inputs in order. JSON,
``{"positional": [["pair", ["a", "b"]]], "keyword": [["scale", {"value": 2}]]}``: names and trees of
input names, see `ArgumentTree`."""
ARGUMENT_LEVELS = 100
"""Maximum number of levels of the trees of arguments that are read."""
CONTRACT = "coreai.contract"
"""Model metadata: what the callers of a decoder feed, JSON, see `coreai_onnx.model.contract`."""
TARGET = "coreai.target"
"""Model metadata: the target that the model was last optimized for."""
DETERMINISM = "coreai.determinism"
"""Model metadata: along which axes the results of a row have the same bits in a session with
``deterministic=True``, and which operators only measurements say so of. JSON, ``{"axes": ["batch"],
"measured": ["Exp"]}``."""
STAGE = "coreai.stage"
"""Model metadata: which stage of a pipeline the file is, and the outputs of the whole model. JSON,
``{"stage": 0, "stages": 2, "outputs": ["logits"]}``."""
MINIMUM_ONNXRUNTIME = "coreai.minimum_onnxruntime"
"""Model metadata: the oldest onnxruntime that must be able to run the file."""


ArgumentTree = str | list["ArgumentTree"] | dict[str, Any]
"""An argument: the name of an input, a sequence, ``{"items": [[key, tree], ...]}`` of a mapping,
``{"fields": {name: tree}}`` of a dataclass, or ``{"value": 3}`` of a constant of the model."""


NamedTrees = list[tuple[str, ArgumentTree]]
"""Arguments in order; the name is empty where it is not known."""


@dataclass(frozen=True)
class StateInfo:
    """A state: the graph input that takes its old value and the output that returns the new one."""

    input: str
    output: str


@dataclass(frozen=True)
class StageInfo:
    """Which stage of a pipeline a file is, and the outputs of the whole model."""

    stage: int
    stages: int
    outputs: tuple[str, ...]


@dataclass(frozen=True)
class Relation:
    """A condition on sizes of several dims, or one that bounds cannot express.

    Attributes:
        holds: The condition in Python, over names of sizes: ``(seq % 8) == 0``.
        source: The line of the model that requires it, ``model.py:41``; empty if unknown.
    """

    holds: str
    source: str = ""


def read_states(metadata: Mapping[str, str]) -> tuple[StateInfo, ...]:
    """Read the states from a model's metadata (key ``STATES``)."""
    return _pairs(metadata, STATES)


def read_mutated_inputs(metadata: Mapping[str, str]) -> dict[str, str]:
    """Read which output holds what was written to which input (key ``MUTATED_INPUTS``).

    Returns:
        Output name to input name.
    """
    return {pair.output: pair.input for pair in _pairs(metadata, MUTATED_INPUTS)}


def _pairs(metadata: Mapping[str, str], key: str) -> tuple[StateInfo, ...]:
    entries = _entries(metadata, key, "input", "output")
    return tuple(StateInfo(entry["input"], entry["output"]) for entry in entries)


def read_ranges(metadata: Mapping[str, str]) -> dict[str, tuple[int | None, int | None]]:
    """Read the minimum and maximum of symbolic dims (key ``RANGES``); None means no bound."""
    ranges = _json(metadata.get(RANGES) or "{}")
    if not isinstance(ranges, dict):
        raise ValueError(f"a {type(ranges).__name__} is not a mapping of dims to bounds")
    return {name: (_bound(name, b, "min"), _bound(name, b, "max")) for name, b in ranges.items()}


def read_relations(metadata: Mapping[str, str]) -> tuple[Relation, ...]:
    """Read conditions on dims (key ``RELATIONS``).

    Raises:
        ValueError: Also if a condition has more than `RELATION_LIMIT` characters.
    """
    entries = _entries(metadata, RELATIONS, "holds")
    long = max((len(entry["holds"]) for entry in entries), default=0)
    if long > RELATION_LIMIT:
        raise ValueError(f"a condition has {long} characters, at most {RELATION_LIMIT} are read")
    return tuple(Relation(entry["holds"], str(entry.get("source", ""))) for entry in entries)


def read_stage(metadata: Mapping[str, str]) -> StageInfo:
    """Read which stage a file is (key ``STAGE``)."""
    entry = _json(metadata.get(STAGE) or "{}")
    if not isinstance(entry, dict) or entry.keys() != {"stage", "stages", "outputs"}:
        raise ValueError(f"{STAGE} must name stage, stages and outputs")
    return StageInfo(entry["stage"], entry["stages"], tuple(entry["outputs"]))


def read_arguments(metadata: Mapping[str, str]) -> tuple[NamedTrees, NamedTrees] | None:
    """Read the positional and the keyword arguments of the module (key ``ARGUMENTS``).

    Returns:
        None if the metadata has none: the arguments are the inputs.
    """
    if ARGUMENTS not in metadata:
        return None
    entry = _json(metadata[ARGUMENTS])
    try:
        positional, keyword = (
            [(str(name), tree) for name, tree in entry.get(key, [])]
            for key in ("positional", "keyword")
        )
    except (AttributeError, TypeError, ValueError):
        raise ValueError("it does not hold names and trees of arguments") from None
    list(argument_inputs([tree for _, tree in (*positional, *keyword)]))  # checks the trees
    return positional, keyword


def argument_inputs(tree: ArgumentTree, levels: int = ARGUMENT_LEVELS) -> Iterator[str]:
    """Yield the names of the inputs in the tree of an argument.

    Raises:
        ValueError: It is not an `ArgumentTree`, or has more levels.
    """
    if not levels:
        raise ValueError("an argument is nested too deeply")
    children: list[ArgumentTree] = []
    if isinstance(tree, str):
        yield tree
    elif isinstance(tree, list):
        children = tree
    elif isinstance(tree, dict) and isinstance(tree.get("fields"), dict):
        children = [*tree["fields"].values()]
    elif isinstance(tree, dict) and isinstance(tree.get("items"), list):
        pairs = tree["items"]
        if not all(isinstance(x, list) and len(x) == 2 for x in pairs):
            raise ValueError("a mapping of arguments is not a list of pairs")
        children = [child for _, child in pairs]
    elif not isinstance(tree, dict) or "value" not in tree:
        raise ValueError(f"{tree!r:.80} is not the tree of an argument")
    for child in children:
        yield from argument_inputs(child, levels - 1)


def _entries(metadata: Mapping[str, str], key: str, *texts: str) -> list[dict[str, Any]]:
    """Read a JSON list of objects that have the given string fields."""
    entries = _json(metadata.get(key) or "[]")
    if not isinstance(entries, list):
        raise ValueError(f"a {type(entries).__name__} is not a list")
    for entry in entries:
        for name in texts:
            if not isinstance(entry, dict) or not isinstance(entry.get(name), str):
                raise ValueError(f"the entry {entry!r:.80} has no text {name!r}")
    return entries


def _bound(name: str, bounds: object, key: str) -> int | None:
    if not isinstance(bounds, dict):
        raise ValueError(f"the bounds of {name!r} are {bounds!r:.80}")
    bound = bounds.get(key)
    # JSON's true is a bool, and bool is a subclass of int.
    if bound is not None and (not isinstance(bound, int) or isinstance(bound, bool)):
        raise ValueError(f"{key} of {name!r} is {bound!r:.80}, not an integer")
    return bound


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def read_complex(metadata: Mapping[str, str]) -> frozenset[str]:
    """Read which inputs and outputs are complex from a model's metadata (key ``COMPLEX``)."""
    names = _json(metadata.get(COMPLEX) or "[]")
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ValueError("it is not a list of names")
    return frozenset(names)


def adopt(result: ir.Model, model: ir.Model) -> None:
    """Move the graph and the functions of a copy into a model.

    Work on a copy leaves the model as it was if it fails. The metadata of the model stays.

    Args:
        result: The changed copy.
        model: The model, which is changed in place.
    """
    model.graph = result.graph
    model.functions.clear()
    model.functions.update(result.functions)


_METADATA = 14
"""The number of ``metadata_props`` in ``ModelProto``."""


def read_metadata(file: BinaryIO) -> dict[str, str]:
    """Return the metadata of a serialized model, of which nothing else is read.

    Raises:
        EOFError: If the file is broken.
    """
    entries = (BytesIO(content) for content in fields(file, _METADATA))
    # Key and value of a StringStringEntryProto.
    pairs = ([next(fields(one, number), b"") for number in (1, 2)] for one in entries)
    return {key.decode(): value.decode() for key, value in pairs}


def fields(file: BinaryIO, number: int) -> Iterator[bytes]:
    """Yield the messages of a field of a message (protobuf.dev/programming-guides/encoding).

    Raises:
        EOFError: If the message is broken.
    """
    size = file.seek(0, os.SEEK_END)
    file.seek(0)
    while file.tell() < size:
        field, kind = divmod(_varint(file), 8)
        length = _varint(file)  # of a number, its value
        if field == number:
            yield file.read(length)
        elif kind == 2:
            file.seek(length, os.SEEK_CUR)
        elif kind != 0:
            raise EOFError


def _varint(file: BinaryIO) -> int:
    """Read an integer of 7 bits a byte, the lowest first."""
    value = shift = 0
    while byte := file.read(1):
        value |= (byte[0] & 127) << shift
        shift += 7
        if byte[0] < 128:
            return value
    raise EOFError
