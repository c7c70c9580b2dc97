"""Every architecture for every target: held to torch, with the nodes that are left.

    python -m tools.bench.targets
    python -m tools.bench.targets --models llama vit --targets contrib

The suite does this for the default target with every architecture, and for the others with a few.
"""

from __future__ import annotations

import argparse
import sys
import warnings

import onnx_ir as ir
import torch

from coreai_onnx import OnnxProgram, TorchConverter
from coreai_onnx.errors import CoreaiError
from coreai_onnx.messages import render
from coreai_onnx.passes import TARGETS
from tests.models.architecture import Architecture, expected_outputs
from tests.models.zoo import ARCHITECTURES
from tests.passes.rewriting import optimize_for
from tests.support.tolerances import assert_close


def main() -> int:
    """Check, and print one table; 1 if anything fails."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--models", nargs="+", default=[a.name for a in ARCHITECTURES])
    parser.add_argument("--targets", nargs="+", default=list(TARGETS))
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    rows, failures = [], 0
    for architecture in ARCHITECTURES:
        if architecture.name not in options.models:
            continue
        module = architecture.module()
        exported = architecture.export(module)
        found = [check(architecture, module, exported, target) for target in options.targets]
        failures += sum(not text.isdigit() for text in found)
        rows.append((architecture.name, *found))
        print(*rows[-1], flush=True)
    print(render(("nodes", *options.targets), rows))
    return min(failures, 1)


def check(
    architecture: Architecture,
    module: torch.nn.Module,
    exported: torch.export.ExportedProgram,
    target: str,
) -> str:
    """Return the number of nodes, or what is wrong."""
    opset = 18 if target == "portable" else 23
    program: OnnxProgram = (
        TorchConverter().add_exported_program(exported).to_onnx(opset_version=opset)
    )
    try:
        program.optimize(target=target)
        again = ir.from_proto(program.to_proto())
        if optimize_for(again, target).total:
            return "not idempotent"
        for size in architecture.sizes:
            arguments = architecture.arguments(*size)
            actual = list(program.run(**arguments, kernels=False))
            expected = expected_outputs(module, arguments)
            assert_close(actual, expected, exception=architecture.exception, message=str(size))
    except (AssertionError, CoreaiError) as error:
        return f"{type(error).__name__}: {str(error).splitlines()[0]}"
    return str(len(program.model.graph))


if __name__ == "__main__":
    sys.exit(main())
