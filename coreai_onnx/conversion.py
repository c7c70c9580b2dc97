"""Export, conversion and optimization in one call."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.export import ExportedProgram

from coreai_onnx.converter import Targets, TorchConverter
from coreai_onnx.export.capture.arguments import as_arguments, separated
from coreai_onnx.export.capture.exported import refuse_arguments, refuse_options
from coreai_onnx.export.torch_export import TorchExport, with_named_dims
from coreai_onnx.program import OnnxProgram


def convert(
    module: torch.nn.Module | Callable[..., Any] | ExportedProgram,
    args: Any = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    dynamic_shapes: Any = None,
    strict: bool = False,
    prefer_deferred_runtime_asserts_over_guards: bool = False,
    externalize_modules: Targets = None,
    opset_version: int | None = None,
    minimum_onnxruntime: str | None = None,
    optimize: bool = True,
) -> OnnxProgram:
    """Export, convert and optimize a module in one call.

    Args:
        module: The module, usually in ``eval()``; a function, lambda, ``functools.partial`` or
            bound method; the result of ``torch.compile`` or ``torch.jit.trace``; or an
            ``ExportedProgram``, which needs no arguments.
        args: Example positional arguments: a tuple, or one tensor; a mapping is taken as keyword
            arguments. The same tensor may be passed for several inputs.
        kwargs: Example keyword arguments.
        dynamic_shapes: As for ``torch.export.export``; a dim may be a string, ``{0: "batch"}``.
        strict: As for ``torch.export.export``.
        prefer_deferred_runtime_asserts_over_guards: As for ``torch.export.export``.
        externalize_modules: As for :meth:`TorchConverter.add_pytorch_module`.
        opset_version: As for :meth:`TorchConverter.to_onnx`.
        minimum_onnxruntime: As for :meth:`TorchConverter.to_onnx`.
        optimize: Whether to run the graph passes.

    Raises:
        StagingError: If ``module`` cannot be exported, or the arguments do not fit it.
        DynamicShapesError: If a dim that was requested as dynamic cannot be dynamic.
        ExportError: If ``torch.export`` cannot export the module.
        ConversionError: If it cannot be expressed in ONNX.

    Warns:
        ExportRetryWarning: If ``torch.export`` failed because of dynamic sizes, and another attempt
            succeeded; see :mod:`coreai_onnx.export.capture.attempts`.
        SpecializationWarning: If torch fixed a dim that may be dynamic (``Dim.AUTO``).
        RandomnessWarning, TrainingModeWarning: As for :meth:`TorchConverter.to_onnx`.
    """
    converter, (positional, named) = TorchConverter(), as_arguments(args, kwargs)
    if isinstance(module, ExportedProgram):
        refuse_options(
            dynamic_shapes=dynamic_shapes,
            strict=strict,
            prefer_deferred_runtime_asserts_over_guards=prefer_deferred_runtime_asserts_over_guards,
            externalize_modules=externalize_modules,
        )
        refuse_arguments(module, positional, named)
        converter.add_exported_program(module)
    else:
        export = TorchExport(
            separated(positional),
            separated(named),
            with_named_dims(dynamic_shapes),
            strict=strict,
            deferred=prefer_deferred_runtime_asserts_over_guards,
        )
        converter.add_pytorch_module(
            module, export_fn=export, externalize_modules=externalize_modules
        )
    program = converter.to_onnx(
        opset_version=opset_version, minimum_onnxruntime=minimum_onnxruntime
    )
    return program.optimize() if optimize else program
