"""What is packaged: a file, its interface, and the settings that it is run with."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx_ir as ir

from coreai_onnx.errors import SaveError
from coreai_onnx.model.files.external_data import data_files
from coreai_onnx.model.files.loading import load_model
from coreai_onnx.model.files.program_files import MODEL_FILE
from coreai_onnx.model.interface import ModelInterface, TensorInfo, interface
from coreai_onnx.runtime.libraries.library import (
    extensions_path,
    kernels_built,
    library_paths,
    ops_library_path,
)
from coreai_onnx.runtime.sessions.settings import SessionSettings
from coreai_onnx.targets.providers import chosen_providers

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
"""Names that are folders, parts of addresses and keys everywhere."""
_EXTENSIONS = "ai.onnx.contrib"
SERVER_TYPES = {
    "bool": "BOOL", "float16": "FP16", "float32": "FP32", "float64": "FP64",
    **{name: name.upper() for name in ("int8", "int16", "int32", "int64")},
    **{name: name.upper() for name in ("uint8", "uint16", "uint32", "uint64")},
}  # fmt: skip
"""The dtypes that Triton and the Open Inference Protocol call the same."""


def sizes_of(info: TensorInfo) -> list[int]:
    """Return the dims of a tensor as servers write them: -1 is any size."""
    return [dim if isinstance(dim, int) else -1 for dim in info.dims]


@dataclass(frozen=True)
class PackagedFile:
    """A file to package; `PackagedFile.of` reads it.

    Attributes:
        file: The ``.onnx`` file.
        data: Its data files.
        model: Its content.
        interface: Its inputs and outputs; a package has no states.
        name: What the package calls it.
        batch_size: Maximum number of rows of a run; None for no limit.
        settings: Settings of `coreai_onnx.session`.
    """

    file: Path
    data: tuple[Path, ...]
    model: ir.Model
    interface: ModelInterface
    name: str
    batch_size: int | None
    settings: Mapping[str, Any]

    @classmethod
    def of(
        cls,
        model: str | Path,
        *,
        name: str | None = None,
        batch_size: int | None = None,
        **settings: Any,
    ) -> PackagedFile:
        """Read a file, or the ``model.onnx`` of a folder, and check the settings.

        Raises:
            LoadError: If there is no such file, or it is not a model.
            SaveError: If the name, batch size or a setting is not possible, or the model has
                states, whose values no server would carry from one request to the next.
            SessionError: If the value of a setting is out of range.
        """
        path = Path(model)
        file = (path / MODEL_FILE if path.is_dir() else path).resolve()
        if name is None:
            name = path.resolve().name if path.is_dir() else file.stem
        if not _NAME.fullmatch(name):
            raise SaveError(f"{name!r} cannot be the name of a package: use letters, digits, . _ -")
        if batch_size is not None and batch_size < 1:
            raise SaveError(f"batch_size must be positive, got {batch_size}")
        _check(settings)
        content = load_model(file)
        described = interface(content)
        if described.states:
            names = ", ".join(x.name for x in described.states)
            raise SaveError(
                f"{file.name} has states, {names:.80}: requests to a server have no order\n"
                "  serve a decoder with coreai_onnx.huggingface.generation instead"
            )
        data = tuple(sorted(data_files(content)))
        return cls(file, data, content, described, name, batch_size, settings)

    @property
    def uses_kernels(self) -> bool:
        """Whether the kernels run composites: if asked for, or if built and on the CPU."""
        kernels = self.settings.get("kernels")
        if kernels is None:
            return kernels_built() and self.provider in (None, "cpu")
        return bool(kernels)

    @property
    def provider(self) -> str | None:
        """The short name of the execution provider, if one was chosen."""
        chosen = self.settings.get("provider")
        return chosen if chosen is None or isinstance(chosen, str) else chosen[0]

    @property
    def libraries(self) -> list[Path]:
        """The libraries that onnxruntime registers before it opens the file.

        Raises:
            SessionError: If one is not there.
        """
        ours = [ops_library_path()] if self.uses_kernels else []
        calls_extensions = _EXTENSIONS in self.model.opset_imports
        theirs = [extensions_path()] if calls_extensions else []
        return [*ours, *theirs, *library_paths(self.settings.get("custom_ops", ()))]

    @property
    def stored_settings(self) -> dict[str, Any]:
        """The settings as JSON can hold them, for ``session(**settings)``.

        Raises:
            SaveError: If a setting names another file, which would not be in the package.
        """
        # Empty values are the defaults, but False is not: kernels=None uses kernels that are built.
        settings = {key: value for key, value in self.settings.items() if value}
        settings |= {key: False for key, value in self.settings.items() if value is False}
        for name in ("custom_ops", "packed_weights"):
            if name in settings:
                raise SaveError(f"{name} cannot be set: its files are not part of the package")
        chosen = [settings.pop("provider")] if "provider" in settings else []
        providers = chosen_providers([*chosen, *settings.pop("providers", ())])
        return settings | ({"providers": list(providers.items())} if providers else {})

    def copy(self, folder: Path, place: Callable[[Path, Path], object] = shutil.copyfile) -> None:
        """Copy the file and its data files to a folder, as ``model.onnx`` and by their names.

        Args:
            folder: The folder.
            place: Called with a file and its place in the folder.
        """
        place(self.file, folder / MODEL_FILE)
        for path in self.data:
            target = folder / path.relative_to(self.file.parent)
            target.parent.mkdir(parents=True, exist_ok=True)
            place(path, target)


def _check(settings: Mapping[str, Any]) -> None:
    others = dict(settings)
    provider, providers = others.pop("provider", None), others.pop("providers", ())
    names = SessionSettings.__dataclass_fields__.keys() - {"configure", "profile"}
    for setting in others:
        if setting not in names:
            raise SaveError(f"a package has no setting {setting!r}; settings: {', '.join(names)}")
    chosen = chosen_providers([*([] if provider is None else [provider]), *providers])
    SessionSettings(providers=list(chosen.items()), **others)
