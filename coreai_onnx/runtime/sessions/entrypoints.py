"""The models of the entrypoints of a program, which are opened when they are first used."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeGuard, runtime_checkable

from coreai_onnx.errors import LoadError, SessionError
from coreai_onnx.model.interface import difference
from coreai_onnx.model.metadata import MAIN
from coreai_onnx.runtime.sessions.prepared import OpenedModel, PreparedFile
from coreai_onnx.runtime.sessions.settings import SessionSettings
from coreai_onnx.runtime.tensors.signature import Signature

if TYPE_CHECKING:  # a session may open without it: see prepared.py
    import onnx_ir as ir

    from coreai_onnx.runtime.sessions.sources import Source


@runtime_checkable
class HasModels(Protocol):
    """A program: anything that has the onnx_ir models of its entrypoints."""

    @property
    def models(self) -> Mapping[str, ir.Model]:
        """Entrypoint to model."""


class OpenProgram:
    """The entrypoints of a file, a bundle, or a program in memory.

    Attributes:
        names: The names of the entrypoints, in the order in which they were staged.
        main: The entrypoint of a session that names none: ``main``, or else the first.
    """

    def __init__(self, source: Source | HasModels, settings: SessionSettings) -> None:
        """Find the entrypoints; see `coreai_onnx.session`."""
        self._source = source
        self._sources = _sources(source)
        # The models of a bundle share one data file, which is in memory once unless they are
        # prepacked: 223 instead of 335 MiB for two entrypoints, but 76 instead of 56 ms for 128
        # tokens (python -m tools.bench.bundles, in docs/internals/performance_log.md).
        self._share = _is_folder(source) and len(self._sources) > 1
        self._settings = settings
        self._opened: dict[str, OpenedModel] = {}
        self._lock = threading.Lock()
        self.names = tuple(self._sources)
        self.main = MAIN if MAIN in self.names else self.names[0]

    def with_adapters(self) -> OpenProgram:
        """Return the same program with its inputs for adapters, to be opened again."""
        return OpenProgram(self._source, replace(self._settings, adapters=True))

    def model_of(self, name: str) -> ir.Model:
        """Return the onnx_ir model of an entrypoint.

        Raises:
            LoadError: If it cannot be read.
        """
        from coreai_onnx.runtime.sessions.sources import ModelSource  # see above

        return ModelSource(self._sources[name]).read()

    def __getitem__(self, name: str) -> OpenedModel:
        """Return the model of an entrypoint.

        Raises:
            SessionError: If there is no such entrypoint, it cannot be opened, or one of its states
                has the name, but not the type, of a state of another one.
        """
        if name not in self._sources:
            raise SessionError(f"no entrypoint {name!r}; there are {', '.join(self.names)}")
        # Two threads that use an entrypoint for the first time must not open it twice.
        with self._lock:
            if name not in self._opened:
                model = self._open(self._sources[name])
                for other, opened in self._opened.items():
                    _check_states(name, model.signature, other, opened.signature)
                self._opened[name] = model
            return self._opened[name]

    def _open(self, source: Source) -> OpenedModel:
        prepared = PreparedFile.of(source, self._settings, share=self._share)
        model = None if prepared is None else prepared.open(self._settings)
        if model is not None:
            return model
        from coreai_onnx.runtime.sessions.opening import OpenModel  # see above
        from coreai_onnx.runtime.sessions.sources import ModelSource

        return OpenModel(ModelSource(source), self._settings, share=self._share, prepared=prepared)


def _sources(source: Source | HasModels) -> dict[str, Source]:
    if _is_folder(source):
        from coreai_onnx.model.files.program_files import bundled_files  # see above

        try:
            return dict(bundled_files(Path(source)))
        except LoadError as error:
            raise SessionError(f"cannot load {error}") from error
    if isinstance(source, HasModels):
        return dict(source.models)
    return {MAIN: source}


def _is_folder(source: Source | HasModels) -> TypeGuard[str | PathLike[str]]:
    return isinstance(source, str | PathLike) and Path(source).is_dir()


def _check_states(name: str, signature: Signature, other_name: str, other: Signature) -> None:
    for state, info in signature.state_inputs.items():
        there = other.state_inputs.get(state)
        if there is not None and difference(info, there):
            raise SessionError(
                f"state {state!r} is {there.type_text} in the entrypoint {other_name} and "
                f"{info.type_text} in {name}\n  give one of them another name"
            )
