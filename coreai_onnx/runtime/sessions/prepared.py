"""Graphs as onnxruntime has optimized them, in a file beside the packed weights.

The first session of a file writes what its opening has found out: the optimized graph, whose
metadata says what else a session needs. The next one, in any process, reads no model: what imports
onnx_ir and sympy takes more time and memory than the rest of a session (``docs/memory.md``).
"""

from __future__ import annotations

import json
import os
import sys
import time
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import onnxruntime as ort

from coreai_onnx.errors import SessionError
from coreai_onnx.model.metadata import read_metadata
from coreai_onnx.runtime.libraries.library import ops_library_path
from coreai_onnx.runtime.libraries.platforms import mapped_blocks, processor_features
from coreai_onnx.runtime.sessions.settings import SessionSettings, session_options
from coreai_onnx.runtime.states.undo import Recipe, UndoLog
from coreai_onnx.runtime.tensors.signature import Signature
from coreai_onnx.targets.providers import CPU
from coreai_onnx.version import __version__

if TYPE_CHECKING:  # see above
    import onnx_ir as ir

    from coreai_onnx.runtime.profile.node_times import Profile

PREPARED = "coreai.prepared"
"""Model metadata of an optimized graph: the record of its opening, JSON."""
DATA_FOLDER = "session.model_external_initializers_file_folder_path"
SETTLED = 2_000_000_000
"""Nanoseconds without a change after which a file is recorded by its times: a later change within
the resolution of the file system's clock, which is 2 s at most, would not be seen."""


class OpenedModel:
    """A model that is open in onnxruntime; several streams may run it.

    Attributes:
        ort: The ``onnxruntime.InferenceSession``.
        kernels: Whether the native kernels are registered.
        hides_adapters: Whether inputs for adapters were removed.
        signature: Inputs, outputs and states.
        undo: The undo log of updates in place; None if no state is updated in place.
    """

    ort: ort.InferenceSession
    kernels = False
    hides_adapters = False
    signature: Signature
    undo: UndoLog | None = None

    @cached_property
    def initial(self) -> Mapping[str, ir.TensorProtocol]:
        """The values in the file that the states start from, by the states' names."""
        return {}

    def finish_profile(self, skip: int) -> Profile:
        """Return the profile of the runs, once; see `Session.profile`."""
        del skip
        raise SessionError(
            "the session records no profile, or its profile was returned before\n"
            "  open it with session(..., profile=True)"
        )


class PreparedModel(OpenedModel):
    """A model whose graph onnxruntime has optimized in an earlier session."""

    def __init__(
        self, file: PreparedFile, record: Mapping[str, Any], settings: SessionSettings
    ) -> None:
        """Open the graph; raises any exception if it is broken."""
        options, self.kernels = session_options(
            settings,
            record["op_types"],
            kernels=True,
            prepacks=record["prepacks"],
            reads_weights=record["reads_weights"],
        )
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.add_session_config_entry(DATA_FOLDER, str(file.source.parent))
        with mapped_blocks():
            self.ort = ort.InferenceSession(file.path.read_bytes(), options, providers=[CPU])
        self.hides_adapters, self._source = record["hides_adapters"], file.source
        self.signature = Signature.of(self.ort)
        if record["undo"] is not None:
            self.undo = UndoLog(Recipe.from_json(record["undo"]))

    @cached_property
    def initial(self) -> Mapping[str, ir.TensorProtocol]:
        """The values in the file that the states start from."""
        from coreai_onnx.runtime.sessions.sources import ModelSource, initial_values  # see above

        return initial_values(ModelSource(self._source).read())


@dataclass(frozen=True)
class PreparedFile:
    """The place of an optimized graph.

    Attributes:
        path: Its file.
        source: The file of the model, absolute.
        key: What the graph depends on, apart from data files: values of JSON.
    """

    path: Path
    source: Path
    key: list[Any]

    @classmethod
    def of(cls, source: object, settings: SessionSettings, *, share: bool) -> PreparedFile | None:
        """Return the place for a session; None if its graph is not kept.

        Args:
            source: What the session was opened with.
            settings: How it is opened.
            share: Whether other models have the same weights.
        """
        is_kept = settings.packed_weights is not None and isinstance(source, str | os.PathLike)
        more = settings.profile or settings.custom_ops or settings.configure or settings.group
        if not is_kept or more or sys.platform == "win32":
            return None
        file, packed = Path(source).absolute(), Path(str(settings.packed_weights)).absolute()  # type: ignore[arg-type]
        how = [settings.prepack, settings.deterministic, settings.float32_tiles, settings.adapters]
        name = f"{packed.name}.{zlib.crc32(repr((str(file), how, share)).encode()):08x}.onnx"
        try:
            files = [_identity(file), _identity(ops_library_path())]
        except OSError:
            return None
        versions = [__version__, ort.__version__, processor_features()]
        key = [str(file), *how, share, *versions, os.environ.get("COREAI_OPS_TARGET"), *files]
        return cls(packed.with_name(name), file, key)

    def open(self, settings: SessionSettings) -> PreparedModel | None:
        """Return the open model; None if there is no graph of this key that can be opened."""
        try:
            with self.path.open("rb") as file:
                record = json.loads(read_metadata(file)[PREPARED])
            data = [_identity(self.source.parent / name) for name, _ in record["data"]]
            if [record["key"], [one for _, one in record["data"]]] != [self.key, data]:
                return None
            return PreparedModel(self, record, settings)
        except Exception:  # noqa: BLE001 - the model is opened as without it, and the graph replaced
            return None

    def record(self, locations: list[str], **found: Any) -> str | None:
        """Return the metadata of the graph; None if a file has changed just now.

        Args:
            locations: The data files of the model, relative to its folder.
            **found: What `PreparedModel` reads.
        """
        data = [(name, _identity(self.source.parent / name)) for name in locations]
        newest = max(max(one[1:3]) for one in [self.key[-2], *(one for _, one in data)])
        if time.time_ns() - newest < SETTLED:
            return None
        return json.dumps({"key": self.key, "data": data, **found})


def _identity(path: Path) -> list[int]:
    """Return what differs after any change of a file; nobody can set the time of the change."""
    status = path.stat()
    return [status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino]
