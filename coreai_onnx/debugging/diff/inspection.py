"""Human-readable contents of a model file."""

from __future__ import annotations

from dataclasses import dataclass
from os import PathLike
from pathlib import Path

from coreai_onnx.debugging.diff.node_listing import node_listing
from coreai_onnx.errors import LoadError, failures_as
from coreai_onnx.messages import render, size_text
from coreai_onnx.model.files.external_data import data_files
from coreai_onnx.model.files.program_files import files_of
from coreai_onnx.program import OnnxProgram


@dataclass(frozen=True)
class Inspection:
    """A model file's contents; prints as text.

    Attributes:
        program: The file as a program.
        files: Each file to its size in bytes: models, then data files; None if the file is missing.
        metadata: Metadata of the first model.
    """

    program: OnnxProgram
    files: dict[Path, int | None]
    metadata: dict[str, str]

    def __str__(self) -> str:
        """Return files, interface, composites, operators, functions and metadata as text.

        Raises:
            LoadError: The contents of the file cannot be described.
        """
        with failures_as(LoadError, f"{next(iter(self.files))}: cannot be inspected"):
            return self._text()

    def nodes(self) -> str:
        """Return every node of every entrypoint as text, with the lines of Python.

        Raises:
            LoadError: The contents of the file cannot be described.
        """
        with failures_as(LoadError, f"{next(iter(self.files))}: cannot be inspected"):
            return "\n\n".join(node_listing(model) for model in self.program.models.values())

    def _text(self) -> str:
        files = render(
            ("file", "size"),
            [
                (path, "missing" if size is None else size_text(size))
                for path, size in self.files.items()
            ],
        )
        metadata = [(key, _short(value)) for key, value in sorted(self.metadata.items())]
        parts = [files, self.program.summary()]
        if metadata:
            parts.append(render(("metadata", "value"), metadata, indent="  "))
        return "\n\n".join(parts)


def inspect_model(path: str | PathLike[str]) -> Inspection:
    """Return the contents of a ``.onnx`` file, without its weights; a data file may be missing.

    Args:
        path: A file, or the path under which a program of several entrypoints was saved.

    Raises:
        LoadError: If there is no such file, it is not an ONNX model, or it is broken.
    """
    path = Path(path)
    program = OnnxProgram.load(path, data=False)
    with failures_as(LoadError, f"{path}: cannot be inspected"):
        data = {file for model in program.models.values() for file in data_files(model)}
        files = {file: _size(file) for file in (*files_of(path), *sorted(data))}
    return Inspection(program, files, dict(next(iter(program.models.values())).metadata_props))


def _size(file: Path) -> int | None:
    try:
        return file.stat().st_size if file.is_file() else None
    except OSError:  # a name that is too long
        return None


def _short(text: str, limit: int = 100) -> str:
    return text if len(text) <= limit else f"{text[: limit - 1]}…"
