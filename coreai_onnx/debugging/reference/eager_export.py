"""Whether an exported program computes what the eager module does."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.export import ExportedProgram

from coreai_onnx.debugging.reference.torch_side import EagerModule, reference_of
from coreai_onnx.debugging.reference.true_values import as_stored, true_values
from coreai_onnx.debugging.verdict.yardstick import Judgment, judge


def export_faults(
    module: torch.nn.Module,
    program: ExportedProgram,
    calls: Sequence[tuple[tuple[Any, ...], Mapping[str, Any]]],
) -> Iterator[tuple[int, str, Judgment]]:
    """Yield the call, the result and the judgment of every output that torch exported wrongly.

    The allowed error is that of the whole exported program against float64.

    Args:
        module: The eager module; it is not changed.
        program: The exported program, without in-place ops.
        calls: The arguments of each call.
    """
    eager = EagerModule(reference_of(module))
    states: dict[str, torch.Tensor] = {}
    for index, (args, kwargs) in enumerate(calls):
        expected = [x for x in eager.call(args, kwargs).outputs if isinstance(x, torch.Tensor)]
        found = true_values(program, args, kwargs, (), states)
        states |= found.new_states
        for name, wanted in zip(found.outputs, expected, strict=False):
            exported, ideal = (as_stored(x[name]) for x in (found.own, found.ideal))
            judgment = judge(as_stored(wanted), exported, ideal)
            if name not in found.undetermined and not judgment.ok:
                yield index, name, judgment
