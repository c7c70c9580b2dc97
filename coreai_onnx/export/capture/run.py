"""Export of a module with its externalized modules, recognized blocks and known loops."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch.export import ExportedProgram

from coreai_onnx.errors import CoreaiError, StagingError
from coreai_onnx.export.capture.arguments import dense_buffers
from coreai_onnx.export.capture.attempts import with_retries
from coreai_onnx.export.capture.explain import Explanation, explained
from coreai_onnx.export.capture.exported import check_program
from coreai_onnx.export.capture.failures import export_error
from coreai_onnx.export.compat.attribute_access import table_of_the_user
from coreai_onnx.export.compat.regions import regions_called_once_kept
from coreai_onnx.export.compat.traces import data_writes_refused, transforms_restored
from coreai_onnx.export.externalize.bodies import BodyExport, known_loops, trust
from coreai_onnx.export.externalize.module_call import OP, ModuleCall
from coreai_onnx.export.externalize.modules import Externalization
from coreai_onnx.export.externalize.specs import as_specs
from coreai_onnx.export.functionalize.attributes import Attributes, attributes_kept
from coreai_onnx.export.functionalize.buffers import assignments_kept
from coreai_onnx.export.functionalize.decompositions import functional
from coreai_onnx.export.functionalize.replaced_graph import nodes_of
from coreai_onnx.export.recognize.automatic import Automatic, wants
from coreai_onnx.export.recognize.blocks import Recognition
from coreai_onnx.export.torch_export import TorchExport, size_oblivious

ExportFunction = Callable[[torch.nn.Module], ExportedProgram]


@dataclass(frozen=True)
class Captured:
    """An exported module.

    Attributes:
        program: Its program; functional.
        calls: Calls of externalized modules, by tag.
        recognized: The report, if ``"auto"`` was requested.
    """

    program: ExportedProgram
    calls: Mapping[str, ModuleCall]
    recognized: Recognition | None = None


def capture(
    model: torch.nn.Module, export_fn: ExportFunction, externalize_modules: Any = None
) -> Captured:
    """Export a module, and separately the modules in it that are externalized.

    Args:
        model: The module. It is restored when this returns or raises.
        export_fn: Exports it. Called again if the check of known blocks refuses some.
        externalize_modules: As for ``TorchConverter.add_pytorch_module``.

    Raises:
        ExportError: If the module cannot be exported.
        ExternalizationError: If an externalized module cannot be exported separately.
        TypeError: If a target is neither a module class nor a spec.
    """
    automatic, targets = wants(externalize_modules)
    specs = as_specs(targets)
    blocks = Automatic(model, [spec.target_class for spec in specs]) if automatic else None
    trusts = trust if blocks is None else blocks.trusts
    # Ends, because each round refuses at least one more block.
    while True:
        # A new one for each attempt, without the calls of the program that was discarded.
        externalization = Externalization(model, specs)
        with _replaced(blocks, externalization), table_of_the_user() as decompositions:
            program = with_retries(export_fn, lambda export: _attempt(model, export, trusts))
        if blocks is None or not blocks.refuses(program):
            break
    # Bodies are exported while the model is patched as well, so that nested modules are single ops
    # there too.
    with _replaced(blocks, externalization):
        externalization.export_bodies(program, BodyExport(decompositions, trusts))
    return Captured(program, externalization.calls, blocks.report if blocks else None)


@contextmanager
def _replaced(blocks: Automatic | None, externalization: Externalization) -> Iterator[None]:
    """While active, recognized blocks are composites, and externalized modules are single ops."""
    with blocks.patched() if blocks else nullcontext(), externalization.patched():
        yield


def _attempt(
    model: torch.nn.Module, export_fn: ExportFunction, trusts: Callable[[str], bool]
) -> ExportedProgram:
    exported: ExportedProgram | None = None
    try:
        with _traceable(model, export_fn, trusts) as (attributes, explanation):
            exported = export_fn(model)
            check_program(exported)
            program = functional(exported, attributes.names)
    # Errors of this package already name the cause and the advice.
    except CoreaiError:
        raise
    except Exception as error:
        raise export_error(error, after_export=exported is not None) from error
    explanation.warn(exported)
    return program


@contextmanager
def _traceable(
    model: torch.nn.Module, export_fn: ExportFunction, trusts: Callable[[str], bool]
) -> Iterator[tuple[Attributes, Explanation]]:
    """While active, torch traces of a model what it would unroll, drop or refuse otherwise.

    Yields:
        The plain attributes of the model, and what torch reports about its sizes.
    """
    with (
        torch.no_grad(),
        transforms_restored(),
        data_writes_refused(),
        regions_called_once_kept(),
        known_loops(model, trusts),
        attributes_kept(model) as attributes,
        assignments_kept(model),
        dense_buffers(model),
        explained() as explanation,
        # `functional` retraces some programs, with the same view of the sizes 0 and 1.
        size_oblivious(when=isinstance(export_fn, TorchExport) and export_fn.oblivious),
    ):
        yield attributes, explanation


def check_calls(program: ExportedProgram, calls: Mapping[str, ModuleCall]) -> None:
    """Check that every externalized module that a program calls was given.

    Raises:
        StagingError: If some are missing; the message lists their paths.
    """
    tags = {str(n.args[3]) for n in nodes_of(program.graph_module) if n.target is OP}
    missing = sorted(tags - calls.keys())
    if missing:
        paths = ", ".join(tag.rpartition("#")[0] or "(root)" for tag in missing)
        raise StagingError(
            f"the program calls externalized modules ({paths}) that are not given: "
            "pass externalized=subexport_and_restore(model, program)"
        )
