"""A backend and partitioners for tests: the bytes are the list of the operators."""

from __future__ import annotations

import itertools

from coreai_onnx.delegation import (
    BackendDetails,
    CompileSpec,
    DelegationSpec,
    Partitioner,
    PartitionResult,
    PreprocessResult,
    backend,
)

DEMO = "delegation.demo"


@backend(DEMO)
class Demo(BackendDetails):
    """Lists the operators."""

    @staticmethod
    def preprocess(edge_program, compile_specs):
        calls = [str(n.target) for n in edge_program.graph.nodes if n.op == "call_function"]
        specs = [f"{spec.key}={spec.value.decode()}" for spec in compile_specs]
        return PreprocessResult(processed_bytes="#".join([*specs, *calls]).encode())


class Tagging(Partitioner):
    """Tags runs of operators, or every one of them with a tag of its own."""

    def __init__(self, *operators, specs: tuple[CompileSpec, ...] = (), backend_id=DEMO) -> None:
        self.operators, self.spec = operators, DelegationSpec(backend_id, specs)

    def partition(self, exported_program) -> PartitionResult:
        tags, numbers = {}, itertools.count()
        for module in exported_program.graph_module.modules():
            tag = ""
            for node in getattr(module, "graph", exported_program.graph).nodes:
                if node.op != "call_function" or node.target not in self.operators:
                    tag = ""
                    continue
                tag = tag or f"tag{next(numbers)}"
                node.meta["delegation_tag"] = tag
                tags[tag] = self.spec
        return PartitionResult(exported_program, tags)
