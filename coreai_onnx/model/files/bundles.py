"""Bundles: the entrypoints of a program in one folder, with a manifest and one data file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from coreai_onnx.errors import SaveError
from coreai_onnx.model.files.new_files import new_folder
from coreai_onnx.model.files.program_files import MANIFEST, MANIFEST_VERSION, is_file_name, marked
from coreai_onnx.model.files.saving import save_models
from coreai_onnx.model.interface import TensorInfo, difference, interface
from coreai_onnx.model.metadata import read_states
from coreai_onnx.model.provenance.debug_info import DebugInfo

DATA = "weights.onnx.data"
WRITTEN = (MANIFEST, DATA, "*.onnx")
"""Files of a bundle, as patterns."""


def save_bundle(
    models: Mapping[str, ir.Model],
    folder: Path,
    *,
    overwrite: bool = False,
    debug_info: DebugInfo = "full",
) -> tuple[Path, ...]:
    """Write models to a folder, with a manifest, and with equal weights stored once.

    Args:
        models: Entrypoint to model.
        folder: The folder; it appears complete or not at all.
        overwrite: Whether to replace an earlier bundle; otherwise the folder is new or empty.
        debug_info: How the files store debug information.

    Returns:
        The paths written.

    Raises:
        SaveError: If the folder cannot be written, the name of an entrypoint cannot be that of a
            file, or a state of one name differs between entrypoints.
    """
    for name in models:
        if not is_file_name(name):
            raise SaveError(f"cannot write {folder}: entrypoint {name!r} cannot be a file's name")
    shared = shared_states(models)
    with new_folder(folder, replaces=WRITTEN if overwrite else ()) as temporary:
        files = {temporary / f"{name}.onnx": model for name, model in models.items()}
        with marked(models, together=True):
            written = save_models(
                files, temporary / DATA, external_data=True, debug_info=debug_info
            )
        text = json.dumps(_manifest(models, shared), indent=2)
        (temporary / MANIFEST).write_text(f"{text}\n")
    return tuple(folder / name for name in (MANIFEST, *(path.name for path in written)))


def shared_states(models: Mapping[str, ir.Model]) -> dict[str, list[str]]:
    """Return the entrypoints that share a state, by its name.

    An entrypoint shares the state of another one if it has a state, or an input, of that name.

    Raises:
        SaveError: If a state of one name has different types or initial values, or is a constant in
            another entrypoint.
    """
    shared: dict[str, list[str]] = {}
    states = (s.input for model in models.values() for s in read_states(model.metadata_props))
    for state in dict.fromkeys(states):
        having = {name: model for name, model in models.items() if state in _inputs(model)}
        for name, model in models.items():
            # A buffer that a forward only reads becomes a constant in the conversion.
            if name not in having and state in model.graph.initializers:
                raise SaveError(
                    f"state {state!r} of {', '.join(having)} is a constant in {name}, which does "
                    "not change it\n  make it an input of its forward, of that name"
                )
        _check_equal(state, having)
        if len(having) > 1:
            shared[state] = list(having)
    return shared


def _check_equal(state: str, models: Mapping[str, ir.Model]) -> None:
    infos = {name: _inputs(model)[state] for name, model in models.items()}
    first_name, first = next(iter(infos.items()))
    values = {n: v.const_value for n, m in models.items() if (v := m.graph.initializers.get(state))}
    for name, info in infos.items():
        if difference(first, info):
            raise SaveError(
                f"state {state!r} is {first.type_text} in {first_name} and {info.type_text} in "
                f"{name}\n  entrypoints share the states of one name: give this one another name"
            )
    arrays = [value.numpy() for value in values.values() if value is not None]
    if not all(np.array_equal(arrays[0], array) for array in arrays):
        raise SaveError(f"state {state!r} starts from different values in {', '.join(values)}")


def _inputs(model: ir.Model) -> dict[str, TensorInfo]:
    io = interface(model)
    return {info.name: info for info in (*io.inputs, *io.states)}


def _manifest(models: Mapping[str, ir.Model], shared: Mapping[str, list[str]]) -> dict[str, Any]:
    entries = []
    for name, model in models.items():
        io = interface(model)
        parts = {"inputs": io.inputs, "outputs": io.outputs, "states": io.states}
        described = {
            part: [{"name": t.name, "dtype": t.dtype, "shape": list(t.dims)} for t in infos]
            for part, infos in parts.items()
        }
        entries.append({"name": name, "file": f"{name}.onnx", **described})
    return {
        "format": "coreai_onnx bundle",
        "version": MANIFEST_VERSION,
        "entrypoints": entries,
        "shared_states": dict(shared),
    }
