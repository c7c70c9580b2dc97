"""Externalization in two steps, around the user's own export (for example that of a quantizer)."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.export import ExportedProgram

from coreai_onnx import messages
from coreai_onnx.errors import ExternalizationError
from coreai_onnx.export.compat.turns import turn
from coreai_onnx.export.externalize.bodies import BodyExport
from coreai_onnx.export.externalize.module_call import ModuleCall
from coreai_onnx.export.externalize.modules import Externalization
from coreai_onnx.export.externalize.specs import ExternalizeSpec

__all__ = ["patch_for_externalization", "restore_externalization", "subexport_and_restore"]

_KEPT = "_coreai_externalization"


def patch_for_externalization(
    model: torch.nn.Module, targets: Sequence[ExternalizeSpec | type]
) -> None:
    """Make every module of the given classes a single op, until the model is restored.

    This is the first of two steps. Between them, the model can be exported in any way and any
    number of times.

    ```python
    patch_for_externalization(model, [LlamaDecoderLayer])
    exported = torch.export.export(model, args)
    externalized = subexport_and_restore(model, exported)
    TorchConverter().add_exported_program(exported, externalized=externalized)
    ```

    Args:
        model: The model. The ``forward`` of its modules is replaced; nothing else changes.
        targets: Module classes, or :class:`ExternalizeSpec` for composites.

    Raises:
        ExternalizationError: If the model is already patched.
        TypeError: If a target is neither a module class nor a spec.

    Warns:
        UserWarning: If a class matches no module.
    """
    if _KEPT in vars(model):
        raise ExternalizationError(
            f"{type(model).__name__} is already marked for externalization",
            advice="call subexport_and_restore or restore_externalization first",
        )
    externalization = Externalization(model, targets)
    externalization.patch()
    vars(model)[_KEPT] = externalization


@turn()
def subexport_and_restore(
    model: torch.nn.Module,
    exported_program: ExportedProgram,
    *,
    decompositions: Mapping[Any, Any] | None = None,
    progress_bar: Any = None,
) -> list[ModuleCall]:
    """Export the externalized modules that a program calls, and restore the model.

    Args:
        model: A model that :func:`patch_for_externalization` patched. It is also restored if this
            raises. For a model that is not patched the result is empty.
        exported_program: The program of the model; it may be quantized, decomposed or exported
            again.
        decompositions: A decomposition table for the modules' own programs; without one they
            are not decomposed.
        progress_bar: Called with an iterable of modules, like ``tqdm.tqdm``; None shows one if the
            export takes longer than a second.

    Returns:
        The ``externalized`` argument of :meth:`TorchConverter.add_exported_program`.

    Raises:
        ExternalizationError: If a module cannot be exported separately.

    Warns:
        UserWarning: For each externalized module that the program does not call.
    """
    externalization: Externalization | None = vars(model).pop(_KEPT, None)
    if externalization is None:
        return []
    try:
        show = progress_bar or functools.partial(messages.progress_bar, "exporting modules")
        table = dict(decompositions or {})
        called = externalization.export_bodies(exported_program, BodyExport(table), show)
        missing = externalization.not_called(called)
    finally:
        externalization.restore()
    for path in missing:
        warnings.warn(
            f"No call sites found for externalized submodule {path!r} in exported_program",
            UserWarning,
            stacklevel=3,  # the decorator adds a frame
        )
    return called


def restore_externalization(model: torch.nn.Module) -> None:
    """Restore a patched model that will not be converted; other models are not changed."""
    externalization: Externalization | None = vars(model).pop(_KEPT, None)
    if externalization is not None:
        externalization.restore()


_patch_model_for_externalization = patch_for_externalization
_subexport_and_restore = subexport_and_restore
