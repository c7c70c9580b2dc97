"""The native kernels of this package as a backend."""

from __future__ import annotations

import json
from collections.abc import Sequence

import onnx_ir as ir
from torch import fx
from torch.export import ExportedProgram

from coreai_onnx.composites import COMPOSITES
from coreai_onnx.composites.declaration import DOMAIN
from coreai_onnx.delegation.backends import (
    BackendDetails,
    CompileSpec,
    PreprocessResult,
    backend,
)
from coreai_onnx.delegation.claims import claimed, lowered_nodes
from coreai_onnx.delegation.partitioning import DelegationSpec, Partitioner, PartitionResult
from coreai_onnx.lower.nodes.values import dtype_of
from coreai_onnx.version import __version__

KERNELS = "ai.coreai.kernels"
"""Id of the backend, and domain of its parts."""


@backend(KERNELS)
class KernelBackend(BackendDetails):
    """Runs composites on the native kernels, which the bodies of its parts call.

    The bytes are a JSON object of the composites of a part, with their dtypes.
    """

    version = __version__

    @staticmethod
    def preprocess(
        edge_program: ExportedProgram,
        compile_specs: Sequence[CompileSpec],  # noqa: ARG004 - the kernels have no settings
    ) -> PreprocessResult:
        """List the composites of a part."""
        lowered = lowered_nodes(edge_program, composites=True)
        calls = [n for nodes in lowered.nodes.values() for n in nodes if n.domain == DOMAIN]
        # Sorted, so that equal parts have equal bytes.
        composites = sorted({(node.op_type, _dtype(node)) for node in calls})
        content = json.dumps([{"composite": name, "dtype": dtype} for name, dtype in composites])
        # Kernels read the weights as inputs: a change of the weights does not invalidate the part.
        return PreprocessResult(content.encode(), holds_weights=False)


class KernelPartitioner(Partitioner):
    """Tags the operators that the native kernels compute, in their dtypes."""

    def partition(self, exported_program: ExportedProgram) -> PartitionResult:
        """Tag the operators that become a composite with a kernel.

        Raises:
            UnsupportedOpsError: If ops of the program have no lowering.
        """
        # Composites are recognized while they are lowered: only their calls show what a kernel
        # computes.
        lowered = lowered_nodes(exported_program, composites=True)
        return claimed(exported_program, lowered, DelegationSpec(KERNELS), _unsupported)


def _unsupported(_operator: fx.Node, nodes: Sequence[ir.Node]) -> str:
    """Return why the kernels do not compute an operator; empty if they do."""
    calls = [node for node in nodes if node.domain == DOMAIN]
    if not calls:
        return f"no composite: it becomes {', '.join(sorted({n.op_type for n in nodes}))}"
    return next((reason for call in calls if (reason := _without_kernel(call))), "")


def _without_kernel(call: ir.Node) -> str:
    composite, dtype = COMPOSITES[call.op_type], _dtype(call)
    if not composite.kernel:
        return f"the composite {composite.name} has no kernel"
    # A part in another dtype would run on its body, and be no faster.
    if dtype not in composite.dtypes:
        dtypes = ", ".join(composite.dtypes)
        return f"the kernel of {composite.name} computes {dtypes}, not {dtype}"
    return ""


def _dtype(call: ir.Node) -> str:
    first = call.inputs[0]
    assert first is not None
    return str(dtype_of(first)).removeprefix("torch.")
