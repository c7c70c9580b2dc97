"""Guards on symbolic sizes that torch added while it traced, with the line of the model.

torch keeps a list of guards (``Eq(Mod(s77, 8), 0)``) and of symbols that were specialized. It
records the line of the model only if the guard is added there, not inside an operator that the line
calls; ``compat.source_lines`` extends this to operators.
"""

from __future__ import annotations

import linecache
import re
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import sympy
from torch.export import ExportedProgram

from coreai_onnx.errors import Where
from coreai_onnx.export.compat.torch_names import (
    FakeTensor,
    PythonPrinter,
    ShapeEnv,
    ShapeGuardPythonPrinter,
)
from coreai_onnx.export.versions import is_torch, relative_path

_LINE = re.compile(r"^(?P<file>.*):(?P<line>\d+) in ")
_SIZE = re.compile(r"^(?P<input>.*)\.size\(\)\[(?P<axis>\d+)\]$")
_NUMBERED = re.compile(r"^L\['flat_args'\]\[(\d+)\]$")


@dataclass(frozen=True)
class FixedDim:
    """A size that was requested as dynamic but is fixed.

    Attributes:
        source: The input as the forward's caller sees it, ``x`` or ``cache[0]``.
        axis: The axis; None for an input that is a number.
        name: Name of the ``Dim``; empty if it had none.
        value: The number.
        where: The line of the model that fixed it, if known.
        why: The reason, if no line of the model fixed it.
    """

    source: str
    axis: int | None
    name: str
    value: int
    where: Where | None = None
    why: str = ""

    def __str__(self) -> str:
        """Return a text with the size, and a second line with the place if it is known."""
        name = f" ({self.name})" if self.name else ""
        which = f"dimension {self.axis}{name} of input" if self.axis is not None else "the input"
        text = f"{which} {self.source!r} is fixed at {self.value} {self.why}".rstrip()
        return f"{text}\n    by {self.where.line}" if self.where is not None else text


def place_of(sloc: Any) -> Where | None:
    """Return the line of the model in a guard's source location, or None if it has none."""
    if sloc is None:
        return None
    if is_of_the_model(sloc):
        location = sloc.framework_loc
        return _where(location.filename, int(location.lineno))
    frame = _LINE.match(sloc.maybe_user_loc or "")
    return _where(frame["file"], int(frame["line"])) if frame else None


def is_of_the_model(sloc: Any) -> bool:
    """Whether a guard is added by the model itself, not by an operator that it calls."""
    location = sloc.framework_loc
    return isinstance(location, traceback.FrameSummary) and not is_torch(location.filename)


def _where(file: str, line: int) -> Where:
    code = linecache.getline(file, line).strip()
    return Where(source=f"{relative_path(file)}:{line}", code=code)


def shape_env(program: ExportedProgram) -> ShapeEnv | None:
    """Return the shape environment of a program, which every fake tensor of it refers to."""
    for node in program.graph.nodes:
        value = node.meta.get("val")
        if isinstance(value, FakeTensor) and value.fake_mode.shape_env:
            return value.fake_mode.shape_env
    return None


def fixed_dims(env: ShapeEnv | None, inputs: Sequence[str] = ()) -> list[FixedDim]:
    """Return the sizes of inputs that have a symbol but were specialized to a number.

    Args:
        env: The shape environment.
        inputs: Names of the inputs in order, for exports that refer to inputs by index.
    """
    if env is None:
        return []
    names = dim_names(env)
    dims = []
    for symbol, sources in env.var_to_sources.items():
        value = env.replace(symbol)
        if not (isinstance(value, sympy.Integer) and sources):
            continue
        where = place_of(env.replacements_slocs.get(symbol))
        text = source_name(sources[0])
        size = _SIZE.match(text)
        # A size of the model's own state, which no example or Dim can change.
        if "L['self']" in text:
            continue
        source, axis = (size["input"], int(size["axis"])) if size else (text, None)
        # Some exports refer to an input by its place among the flattened arguments.
        by_number = _NUMBERED.match(source)
        if by_number and int(by_number[1]) < len(inputs):
            source = inputs[int(by_number[1])]
        dims.append(FixedDim(readable(source), axis, names.get(text, ""), int(value), where))
    return dims


def dim_names(env: ShapeEnv | None) -> dict[str, str]:
    """Return the names of the user's dims by the sizes that they are, ``L['x'].size()[0]``."""
    names: dict[str, str] = getattr(env, "source_name_to_debug_name", {})
    return names


def guards_in(message: str, env: ShapeEnv) -> Iterator[Any]:
    """Yield the guards on sizes of inputs that a message of torch lists."""
    sources = env.var_to_sources
    printer = ShapeGuardPythonPrinter(sources, lambda s: s.name, sources)
    for guard in env.guards:
        is_on_inputs = set(guard.expr.free_symbols) <= sources.keys()
        if is_on_inputs and str(printer.doprint(guard.expr)) in message:
            yield guard


def source_name(source: object) -> str:
    """Return torch's name of the source of a symbol, ``L['x'].size()[0]``."""
    name = getattr(source, "name", "")
    # A method in some releases of torch, a property in others.
    return str(name() if callable(name) else name)


def readable(text: str) -> str:
    """Return ``x.shape[0]`` for ``L['x'].size()[0]``."""
    text = re.sub(r"L\['(\w+)'\]", r"\1", text)
    return re.sub(r"\.size\(\)", ".shape", text)


def python_text(expression: sympy.Basic) -> str:
    """Return an expression over sizes as Python: ``(seq % 8) == 0``."""
    return str(PythonPrinter().doprint(expression))
