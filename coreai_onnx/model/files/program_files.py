"""Files of a program with several entrypoints, which are identified by their metadata.

``save("lm.onnx")`` writes the entrypoints ``prefill`` and ``decode`` to ``lm.prefill.onnx`` and
``lm.decode.onnx``. File names alone are ambiguous: ``lm.backup.onnx`` may be anything. Every file
therefore lists its own entrypoint and the entrypoints that were saved with it.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType

import onnx_ir as ir

from coreai_onnx.errors import LoadError, SaveError, failures_as
from coreai_onnx.model.files.loading import load_model, read_proto
from coreai_onnx.model.files.saving import save_models
from coreai_onnx.model.metadata import ENTRYPOINT, MAIN
from coreai_onnx.model.provenance.debug_info import DebugInfo

ENTRYPOINTS = "coreai.entrypoints"
"""Model metadata: a JSON list of the entrypoints that were saved together, in order."""
MANIFEST = "coreai_manifest.json"
"""The file in a bundle that lists its entrypoints."""
MANIFEST_VERSION = 1
MODEL_FILE, ENCODER_FILE = "model.onnx", "encoder_model.onnx"
MERGED_FILE = "decoder_model_merged.onnx"
EMBEDDING_FILE = "embed_tokens.onnx"
MEDIA_FILES = MappingProxyType({"image": "vision_encoder.onnx", "audio": "audio_encoder.onnx"})
"""The files in a folder of `export_model`, which `generate` reads: optimum's names."""


def save_program(
    models: Mapping[str, ir.Model],
    path: Path,
    *,
    external_data: bool | None = None,
    debug_info: DebugInfo = "full",
) -> tuple[Path, ...]:
    """Write one model to ``path``, or each of several to a file of its own beside it.

    Args:
        models: Entrypoint to model.
        path: The path; its folder exists.
        external_data: As for `save_models`.
        debug_info: As for `save_models`.

    Returns:
        The paths written.

    Raises:
        SaveError: If a file cannot be written; existing files are unchanged.
    """
    with failures_as(SaveError, f"cannot write {path}"):
        if not path.parent.is_dir():
            raise SaveError(f"cannot write {path}: the folder {path.parent} does not exist")
        if path.is_dir():
            raise SaveError(f"cannot write {path}: it is a folder")
    together = len(models) > 1
    files = entrypoint_files(path, models) if together else dict.fromkeys(models, path)
    with marked(models, together=together):
        return save_models(
            {files[name]: model for name, model in models.items()},
            path.with_name(f"{path.name}.data"),
            external_data=external_data,
            debug_info=debug_info,
        )


def entrypoint_files(path: Path, names: Iterable[str]) -> dict[str, Path]:
    """Return the file of every entrypoint of a program with several that is saved to ``path``.

    Raises:
        SaveError: The name of an entrypoint is not a valid file name, or there is a file at
            ``path``, which would be loaded instead.
    """
    if os.path.lexists(path):
        raise SaveError(
            f"cannot write {path}: a file of this name exists, which would be loaded instead of "
            "the files of the entrypoints\n  remove it, or choose another name"
        )
    for name in names:
        if not is_file_name(name):
            raise SaveError(
                f"cannot write {path}: entrypoint {name!r} cannot be part of a file's name\n"
                "  save it alone: save(path, entrypoint=...)"
            )
    return {name: _file_of(path, name) for name in names}


@contextlib.contextmanager
def marked(models: Mapping[str, ir.Model], *, together: bool) -> Iterator[None]:
    """Store the entrypoint names in the metadata of the models while active.

    Args:
        models: Entrypoint to model.
        together: Whether they are saved as several files of one program.
    """
    kept = {name: dict(model.metadata_props) for name, model in models.items()}
    try:
        for name, model in models.items():
            model.metadata_props.pop(ENTRYPOINTS, None)
            if together:
                model.metadata_props[ENTRYPOINT] = name
                model.metadata_props[ENTRYPOINTS] = json.dumps(list(models))
        yield
    finally:
        for name, model in models.items():
            model.metadata_props.clear()
            model.metadata_props.update(kept[name])


def load_models(path: Path, *, data: bool) -> dict[str, ir.Model]:
    """Load the file or the bundle at ``path``, or the files of the program that was saved to it.

    Returns:
        Entrypoint to model.

    Raises:
        LoadError: There is no such file, one cannot be read, or files of a program are missing.
    """
    files = files_of(path)
    if path.is_dir():
        return {name: _loaded(file, data=data) for name, file in bundled_files(path).items()}
    models = [_loaded(file, data=data) for file in files]
    return {model.metadata_props.get(ENTRYPOINT, MAIN): model for model in models}


def _loaded(file: Path, *, data: bool) -> ir.Model:
    model = load_model(file, data=data)
    # It says which files were saved together, and would be wrong after a change of the program.
    model.metadata_props.pop(ENTRYPOINTS, None)
    return model


def files_of(path: Path) -> tuple[Path, ...]:
    """Return the file at ``path``, or the files of the program that is there, in order.

    Raises:
        LoadError: There is neither, or files of the program are missing.
    """
    with failures_as(LoadError, f"{path}: cannot be read"):
        if path.is_dir():
            return tuple(bundled_files(path).values())
        if path.exists():
            return (path,)
        programs = _programs(path)
    whole = [files for files in programs if all(file.is_file() for file in files)]
    if len(whole) == 1:
        return whole[0]
    if whole:
        names = "\n  ".join(", ".join(file.name for file in files) for files in whole)
        raise LoadError(
            f"{path}: the folder has {len(whole)} programs of this name\n  {names}\n"
            "  remove the files of one of them, or load one file by its own name"
        )
    if programs:
        missing = ", ".join(file.name for file in programs[0] if not file.is_file())
        raise LoadError(
            f"{path}: is a program of several files, of which {missing} is missing\n"
            "  keep the files of a program in one folder"
        )
    raise LoadError(f"{path}: no such file")


def bundled_files(folder: Path) -> dict[str, Path]:
    """Return the file of each entrypoint of a bundle, in the order in which they were staged.

    Raises:
        LoadError: If the folder has no manifest, the manifest cannot be read, or a file is missing.
    """
    path = folder / MANIFEST
    if not path.is_file():
        example = "".join(f", such as {file}," for file in sorted(folder.glob("*.onnx"))[:1])
        raise LoadError(
            f"{folder}: is a folder without a {MANIFEST}; give a .onnx file{example} or a bundle"
        )
    with failures_as(LoadError, f"{path}: is not a manifest"):
        content = json.loads(path.read_text())
        if content["version"] != MANIFEST_VERSION:
            raise LoadError(f"{path}: has the version {content['version']}; update coreai_onnx")
        files = {entry["name"]: entry["file"] for entry in content["entrypoints"]}
    if not files or not all(is_file_name(text) for pair in files.items() for text in pair):
        raise LoadError(f"{path}: names no entrypoints, or files outside of the folder")
    if missing := [file for file in files.values() if not (folder / file).is_file()]:
        raise LoadError(f"{folder}: {', '.join(missing)} is missing: the folder is incomplete")
    return {name: folder / file for name, file in files.items()}


def _programs(path: Path) -> list[tuple[Path, ...]]:
    """Return the programs that files beside ``path`` belong to according to their metadata.

    A file whose list of entrypoints differs from that of their files remains from an older save.
    """
    said = {}
    for file in _candidates(path):
        with contextlib.suppress(LoadError):  # unreadable files are reported when they are loaded
            said[file] = _saved_together(file, path)
    programs = []
    for names in dict.fromkeys(filter(None, said.values())):
        files = tuple(_file_of(path, name) for name in names)
        if all(said.get(file, names) == names for file in files):
            programs.append(files)
    return programs


def _candidates(path: Path) -> list[Path]:
    """Return the files whose names begin and end like those of entrypoints."""
    start, end = f"{path.stem}.", path.suffix
    if not path.stem or not path.parent.is_dir():
        return []
    names = (file.name for file in path.parent.iterdir() if file.is_file())
    fitting = (n for n in names if n.startswith(start) and n[len(start) :].endswith(end))
    return [path.with_name(name) for name in sorted(fitting)]


def _saved_together(file: Path, path: Path) -> tuple[str, ...]:
    """Return the entrypoints that a file was saved with, per its metadata; empty if it has none."""
    metadata = {entry.key: entry.value for entry in read_proto(file).metadata_props}
    try:
        names = json.loads(metadata.get(ENTRYPOINTS) or "[]")
    except (ValueError, RecursionError):
        return ()
    entrypoint = metadata.get(ENTRYPOINT, MAIN)
    if not isinstance(names, list) or entrypoint not in names or not all(map(is_file_name, names)):
        return ()
    # A copy under another name has the same metadata, but does not belong to the program.
    return tuple(dict.fromkeys(names)) if file == _file_of(path, entrypoint) else ()


def _file_of(path: Path, name: str) -> Path:
    return path.with_name(f"{path.stem}.{name}{path.suffix}")


def is_file_name(name: object) -> bool:
    """Return whether the name of an entrypoint can be part of a file name."""
    # A backslash separates folders on Windows, where the files may be copied to.
    return isinstance(name, str) and bool(name) and not {"/", "\\", "\0"} & set(name)
