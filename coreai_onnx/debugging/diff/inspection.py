"""The contents of a model as text: parts, nodes, operators."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path

import onnx_ir as ir

from coreai_onnx.debugging.diff.fingerprints import attribute_texts
from coreai_onnx.debugging.difference import histogram_rows
from coreai_onnx.errors import LoadError, Where, failures_as
from coreai_onnx.messages import printable, render, size_text
from coreai_onnx.model.files.external_data import data_files
from coreai_onnx.model.files.program_files import files_of, load_models
from coreai_onnx.model.interface import value_type_text
from coreai_onnx.model.inventory import op_histogram, op_name
from coreai_onnx.model.provenance.places import where_of
from coreai_onnx.model.provenance.source_lines import read_code
from coreai_onnx.model.standard.model_protos import subgraphs
from coreai_onnx.targets.contrib import summary


@dataclass(frozen=True)
class Inspection:
    """A model file's contents; prints as text.

    Attributes:
        models: The models of the file by entrypoint.
        files: Each file to its size in bytes: models, then data files; None if the file is missing.
        metadata: Metadata of the first model.
    """

    models: Mapping[str, ir.Model]
    files: dict[Path, int | None]
    metadata: dict[str, str]

    def __str__(self) -> str:
        """Return files, interface, composites, operators, functions and metadata as text.

        Raises:
            LoadError: The contents of the file cannot be described.
        """
        with failures_as(LoadError, f"{next(iter(self.files))}: cannot be inspected"):
            sizes = [
                (path, "missing" if size is None else size_text(size))
                for path, size in self.files.items()
            ]
            parts = [render(("file", "size"), sizes), summary(self.models)]
            if self.metadata:
                metadata = [(key, _short(value)) for key, value in sorted(self.metadata.items())]
                parts.append(render(("metadata", "value"), metadata, indent="  "))
            return "\n\n".join(parts)

    def nodes(self) -> str:
        """Return every node of every entrypoint as text, with the lines of Python.

        Raises:
            LoadError: The contents of the file cannot be described.
        """
        with failures_as(LoadError, f"{next(iter(self.files))}: cannot be inspected"):
            return "\n\n".join(node_listing(model) for model in self.models.values())


def inspect_model(path: str | PathLike[str]) -> Inspection:
    """Return the contents of a ``.onnx`` file, without its weights; a data file may be missing.

    Args:
        path: A file, or the path under which a program of several entrypoints was saved.

    Raises:
        LoadError: If there is no such file, it is not an ONNX model, or it is broken.
    """
    path = Path(path)
    models = load_models(path, data=False)
    with failures_as(LoadError, f"{path}: cannot be inspected"):
        data = {file for model in models.values() for file in data_files(model)}
        files = {file: _size(file) for file in (*files_of(path), *sorted(data))}
    return Inspection(models, files, dict(next(iter(models.values())).metadata_props))


def _size(file: Path) -> int | None:
    try:
        return file.stat().st_size if file.is_file() else None
    except OSError:  # a name that is too long
        return None


def _short(text: str, limit: int = 100) -> str:
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


def node_listing(model: ir.Model) -> str:
    """Return a line for each node of the main graph, of its subgraphs, and of the functions.

    Nodes of one module and line have a heading: ``# Module``, ``# File …, line …, code: …``.
    """
    code = read_code(model.metadata_props)
    parts = ["\n".join(_lines(model.graph, code, ""))]
    for function in model.functions.values():
        inputs = ", ".join(value.name or "?" for value in function.inputs)
        head = f"function {op_name(function.domain, function.name)}({inputs})"
        parts.append("\n".join([printable(head), *_lines(function.graph, code, "  ")]))
    return "\n\n".join(part for part in parts if part)


def _lines(graph: ir.Graph, code: dict[str, str], indent: str) -> Iterator[str]:
    before: Where | None = None
    for node in graph:
        where = where_of(node, code)
        if where != before:
            if before is not None:
                yield ""
            yield from (f"{indent}# {printable(text)}" for text in _heading(where))
        before = where
        yield f"{indent}{printable(_node(node))}"
        for inner in subgraphs(node):
            yield from _lines(inner, code, f"{indent}    ")


def _heading(where: Where) -> Iterator[str]:
    if where.module or where.module_class:
        kind = f" ({where.module_class})" if where.module_class else ""
        yield f"Module {where.module or '(root)'}{kind}"
    if where.source:
        file, _, line = where.source.rpartition(":")
        yield f"File {file}, line {line}" + (f", code: {where.code}" if where.code else "")


def _node(node: ir.Node) -> str:
    """Return ``y: float32[2, 4] = Gemm(x, w, b, alpha=0.5)``."""
    typed = ((value.name, value_type_text(value)) for value in node.outputs if value.name)
    results = ", ".join(f"{name}: {text}" if text else str(name) for name, text in typed)
    inputs = ["" if value is None else value.name or "?" for value in node.inputs]
    attributes = [f"{name}={text}" for name, text in sorted(attribute_texts(node).items())]
    call = f"{op_name(node.domain, node.op_type)}({', '.join([*inputs, *attributes])})"
    return f"{results} = {call}"


def histogram(paths: Sequence[str | PathLike[str]]) -> str:
    """Return a table of operators: with bars for one file, with the difference for two.

    Args:
        paths: One or two files.

    Raises:
        LoadError: If a file is missing or not an ONNX model.
        ValueError: If there are not one or two files.
    """
    if len(paths) not in (1, 2):
        raise ValueError(f"a histogram takes one or two files, not {len(paths)}")
    counts = [_counts(path) for path in paths]
    totals = [sum(count.values()) for count in counts]
    if len(counts) == 1:
        bars = histogram_rows(counts[0])
        return render(("operator", "count", ""), [*bars, ("all", totals[0], "")])
    first, second = counts
    names = sorted({**first, **second}, key=lambda name: (-first.get(name, 0), name))
    rows = [(name, a := first.get(name, 0), b := second.get(name, 0), b - a) for name in names]
    header = ("operator", *(Path(path).name for path in paths), "difference")
    return render(header, [*rows, ("all", *totals, totals[1] - totals[0])])


def _counts(path: str | PathLike[str]) -> dict[str, int]:
    counts: dict[str, int] = {}
    models = load_models(Path(path), data=False)
    with failures_as(LoadError, f"{path}: its operators cannot be counted"):
        for model in models.values():
            for name, count in op_histogram(model).items():
                counts[name] = counts.get(name, 0) + count
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))
