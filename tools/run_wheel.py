"""Convert a model, run it with and without the kernels of an installed wheel, and compare.

The model is the README's. It is run in an environment with the wheel and its dependencies, from any
folder but the checkout's root, whose package would be imported instead of the wheel's.
"""

from __future__ import annotations

import platform
import sys
import tempfile
from pathlib import Path

import onnxruntime
import torch

import coreai_onnx


def main() -> int:
    """Run the model both ways; return 1 if the results are not those of torch."""
    layer = torch.nn.TransformerEncoderLayer(64, 4, batch_first=True, norm_first=True)
    model, x = layer.eval(), torch.randn(2, 10, 64)
    dims = {"src": {0: torch.export.Dim("batch"), 1: torch.export.Dim("seq")}}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "encoder.onnx"
        coreai_onnx.convert(model, (x,), dynamic_shapes=dims).save(path)
        results = {
            kernels: coreai_onnx.session(path, kernels=kernels).run(x)[0]
            for kernels in (False, True)
        }
    expected = model(x).detach()
    print(f"{platform.platform()}, Python {platform.python_version()}, torch {torch.__version__}")
    print(f"onnxruntime {onnxruntime.__version__}, {coreai_onnx.ops_library_path()}")
    worst = 0.0
    for kernels, result in results.items():
        difference = (torch.from_numpy(result) - expected).abs().max().item()
        print(f"kernels={kernels}: largest difference from torch {difference:.1e}")
        worst = max(worst, difference)
    return 0 if worst < 1e-5 else 1


if __name__ == "__main__":
    sys.exit(main())
