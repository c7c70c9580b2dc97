"""Plan and use of memory by architecture: ``python -m tools.bench.memory_plans [NAME …]``.

Every architecture of docs/models.md with random weights, at the last of its sizes, on function
bodies and on kernels: the peak of the plan, what onnxruntime's arena used, and the peak with
``low_memory``, planned and used.
"""

from __future__ import annotations

import argparse
import sys
import warnings

from coreai_onnx.converter import TorchConverter
from coreai_onnx.messages import render, size_text
from coreai_onnx.program import OnnxProgram
from coreai_onnx.runtime.libraries.library import kernels_built
from coreai_onnx.runtime.memory import MemoryPlan, memory_plan
from tests.models.architecture import Architecture
from tests.models.zoo import ARCHITECTURES, named


def _converted(architecture: Architecture) -> OnnxProgram:
    exported = architecture.export(architecture.module())
    program = TorchConverter().add_exported_program(exported).to_onnx()
    program.optimize()
    return program


def _row(name: str, ordinary: MemoryPlan, low: MemoryPlan) -> tuple[object, ...]:
    return (
        name,
        "kernels" if ordinary.kernels else "bodies",
        len(ordinary.nodes),
        size_text(ordinary.peak),
        size_text(ordinary.peak_used),
        f"{ordinary.peak_used / ordinary.peak:.3f}",
        size_text(low.peak),
        f"{low.peak_used / low.peak:.3f}",
        f"{ordinary.peak_used / low.peak_used:.2f}",
    )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME")
    names = parser.parse_args().names
    warnings.simplefilter("ignore")
    rows = []
    for architecture in map(named, names) if names else ARCHITECTURES:
        print(architecture.name, file=sys.stderr)
        program = _converted(architecture)
        inputs = architecture.arguments(*architecture.sizes[-1])
        for kernels in sorted({False, kernels_built()}):
            ordinary, low = (
                memory_plan(program, inputs, kernels=kernels, low_memory=low)
                for low in (False, True)
            )
            rows.append(_row(architecture.name, ordinary, low))
    header = ("model", "runs on", "nodes", "peak", "used", "ratio")
    print(render((*header, "low memory", "ratio", "saved"), rows))


if __name__ == "__main__":
    main()
