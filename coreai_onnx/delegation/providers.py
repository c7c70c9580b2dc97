"""Execution providers of onnxruntime as backends."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping, Sequence
from functools import partial

import onnx_ir as ir
from torch import fx
from torch.export import ExportedProgram

from coreai_onnx.delegation.backends import (
    BackendDetails,
    CompileSpec,
    PreprocessResult,
    backend,
)
from coreai_onnx.delegation.claims import Claim, claimed, lowered_nodes
from coreai_onnx.delegation.partitioning import DelegationSpec, Partitioner, PartitionResult
from coreai_onnx.delegation.parts import part_of
from coreai_onnx.errors import DelegationError, SessionError, reason_of
from coreai_onnx.model.delegated_parts import PROVIDER, compiled_input, compiled_output, digest_of
from coreai_onnx.model.files.saving import to_proto
from coreai_onnx.runtime.libraries.providers import claimed_nodes, compiled, provider_version


class ProviderPartitioner(Partitioner):
    """Tags the operators that an execution provider claims, as its ``GetCapability`` reports them.

    The parts of a provider that compiles ahead of time are compiled to ``com.microsoft::EPContext``
    nodes, which the file keeps, and `coreai_onnx.session` loads with ``providers=[provider]``.

    Args:
        provider: The execution provider, ``OpenVINOExecutionProvider``. The library of a plugin
            must be registered with onnxruntime.
        settings: Settings of the provider.

    Raises:
        DelegationError: If the name or a setting is not a string.
        SessionError: If the provider is not available.
    """

    def __init__(self, provider: str, settings: Mapping[str, str] | None = None) -> None:
        """Register the provider as a backend."""
        self.provider, self.settings = provider, dict(settings or {})
        texts = [provider, *self.settings, *self.settings.values()]
        if wrong := [value for value in texts if not isinstance(value, str)]:
            raise DelegationError(
                "ProviderPartitioner takes the name of a provider and its settings as strings, got "
                f"{wrong[0]!r:.40}"
            )
        specs = [CompileSpec(key, value.encode()) for key, value in self.settings.items()]
        self.spec = DelegationSpec(_registered(provider), specs)

    def partition(self, exported_program: ExportedProgram) -> PartitionResult:
        """Tag the claimed operators; the result has the reasons for the others.

        A provider may reject a program for an operator that it has claimed. It is then asked about
        each operator alone.

        Raises:
            UnsupportedOpsError: If ops of the program have no lowering.
        """
        # Providers do not know composites, only the nodes of their bodies.
        lowered = lowered_nodes(exported_program, composites=False)
        try:
            owners = self._owners(lowered.model)
        # Some providers refuse a whole model for one operator that they cannot compile.
        except SessionError:
            claim: Claim = partial(self._rejected_alone, exported_program)
        else:
            claim = partial(self._unclaimed, owners)
        return claimed(exported_program, lowered, self.spec, claim)

    def _owners(self, model: ir.Model) -> dict[str, str]:
        return claimed_nodes(to_proto(model).SerializeToString(), self.provider, self.settings)

    def _unclaimed(
        self, owners: Mapping[str, str], _operator: fx.Node, nodes: Iterable[ir.Node]
    ) -> str:
        # onnxruntime turns Constant nodes into initializers
        others = dict.fromkeys(
            node.op_type
            for node in nodes
            if node.op_type != "Constant" and owners.get(str(node.name)) != self.provider
        )
        return f"{self.provider} does not claim {', '.join(others)}" if others else ""

    def _rejected_alone(
        self, program: ExportedProgram, node: fx.Node, _nodes: Sequence[ir.Node]
    ) -> str:
        # Several results are taken by getitem, without which the part would return a list.
        results = [user for user in node.users if user.target is operator.getitem]
        part = part_of(program, program.graph_module, [node, *results])
        try:
            model = lowered_nodes(part.program, composites=False).model
            return self._unclaimed(self._owners(model), node, model.graph)
        except SessionError as error:
            return reason_of(error)


def _registered(provider: str) -> str:
    """Register an execution provider as a backend, and return its id."""

    @backend(PROVIDER + provider)
    class ProviderBackend(BackendDetails):
        """Compiles parts with an execution provider."""

        # Compiled blobs are valid for one release of a provider.
        version = provider_version(provider)

        @staticmethod
        def preprocess(
            edge_program: ExportedProgram, compile_specs: Sequence[CompileSpec]
        ) -> PreprocessResult:
            """Return the compiled model of a part."""
            settings = {spec.key: spec.value.decode() for spec in compile_specs}
            return PreprocessResult(_compiled(edge_program, provider, settings))

    return PROVIDER + provider


def _compiled(program: ExportedProgram, provider: str, settings: Mapping[str, str]) -> bytes:
    """Compile a part; its inputs and outputs get names that are unique among parts."""
    model = lowered_nodes(program, composites=False).model
    # Before the names change, so that equal parts get equal names.
    digest = digest_of([to_proto(model).SerializeToString()])
    for number, value in enumerate(model.graph.inputs):
        # EPContext finds values by name, and a file may hold several compiled parts.
        value.name = compiled_input(digest, number)
    for number, value in enumerate(model.graph.outputs):
        value.name = compiled_output(digest, number)
    return compiled(to_proto(model).SerializeToString(), provider, settings)
