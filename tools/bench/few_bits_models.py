"""Llama-like models with 4-bit weights in groups of 32: this project and others, in one run.

    python -m tools.bench.few_bits_models --folder /tmp/few_bits_100m --threads 1 2 \\
        --environment llama.cpp=/llama/bin/python genai=/genai/bin/python openvino=/ov/bin/python
    python -m tools.bench.few_bits_models --folder /tmp/few_bits_600m --size 600m --threads 1

12 layers with random weights, rounded to nearest: our float32 on the kernels; 4 bits on the
kernels, with activations as they are and rounded to 8 bits, both with a growing cache and with a
static one, into which the file writes and which genai's file has as well; onnxruntime's MatMulNBits
of both kinds; llama.cpp's Q4_0; the builder of onnxruntime-genai; OpenVINO with weights compressed
by NNCF. Steps, clocks, processes and environments are those of `generation.py`; ``openvino`` is an
interpreter with openvino and nncf.
"""

from __future__ import annotations

import argparse
import functools
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from coreai_onnx import OnnxProgram
from coreai_onnx.runtime import ops_library_path
from tools.bench.generation import measure, written
from tools.bench.generation_models import (
    SIZES,
    Peer,
    genai,
    gguf,
    mark_missing,
    ours,
    write_source,
)
from tools.bench.generation_worker import SOURCE

GROUP = 32
FLOAT = ours("growing", "onnxruntime", kernels=True)
STATIC = ours("static", "onnxruntime", kernels=True)


def few_bits(
    name: str,
    target: Literal["kernels", "contrib"],
    *,
    activation_bits: int,
    source: Peer = FLOAT,
) -> Peer:
    """Return a float32 file of ours with 4-bit weights for a target."""
    to = name.replace(" ", "_").replace(",", "")

    def build(folder: Path, environments: Mapping[str, str]) -> None:
        del environments
        program = OnnxProgram.load(folder / source.worker["path"])
        program.quantize(4, GROUP, method="rtn", symmetric=True, activation_bits=activation_bits)
        (folder / to).mkdir()
        program.optimize(target=target).save(folder / to / "model.onnx")

    worker = {**source.worker, "path": f"{to}/model.onnx"}
    worker.pop("library", None)
    if target == "kernels":
        worker["library"] = str(ops_library_path())
    return Peer(name, build, worker, is_ours=True)


def inlined(folder: Path, environments: Mapping[str, str]) -> None:
    """Write our float32 file without functions, which OpenVINO does not read."""
    del environments
    import onnx
    from onnx.inliner import inline_local_functions

    model = inline_local_functions(onnx.load(folder / FLOAT.worker["path"]))
    (folder / "inlined").mkdir()
    file = folder / "inlined" / "model.onnx"
    onnx.save(model, file, save_as_external_data=True, location="model.onnx.data")


def peers() -> list[Peer]:
    """Return all implementations."""
    return [
        FLOAT,
        few_bits("kernels", "kernels", activation_bits=0),
        few_bits("kernels, rounded", "kernels", activation_bits=8),
        STATIC,
        few_bits("kernels, static", "kernels", activation_bits=0, source=STATIC),
        few_bits("kernels, rounded, static", "kernels", activation_bits=8, source=STATIC),
        few_bits("MatMulNBits 0", "contrib", activation_bits=0),
        few_bits("MatMulNBits 4", "contrib", activation_bits=8),
        Peer(
            "llama.cpp, Q4_0",
            functools.partial(gguf, quantization="Q4_0"),
            {"kind": "llama.cpp", "path": "model.gguf"},
            "llama.cpp",
            needs="llama.cpp",
        ),
        Peer(
            "onnxruntime-genai's builder, int4",
            functools.partial(genai, precision="int4"),
            {"kind": "file", "path": "genai/model.onnx", "shared": True},
            needs="genai",
        ),
        Peer(
            "OpenVINO, int4",
            inlined,
            {"kind": "openvino", "path": "inlined/model.onnx"},
            "openvino",
            needs="openvino",
        ),
    ]


def main() -> int:
    """Write the files, measure, and print one table per number of threads."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--folder", type=Path, required=True, help="for the files, which are kept")
    parser.add_argument("--size", choices=SIZES, default="100m")
    parser.add_argument("--environment", nargs="*", default=[], metavar="NAME=PATH")
    parser.add_argument("--threads", type=int, nargs="+", default=[1])
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--only", nargs="*", default=[], help="parts of names")
    parser.add_argument("--prepare", action="store_true", help="only write the files")
    options = parser.parse_args()
    environments = dict(one.split("=", 1) for one in options.environment)
    folder = options.folder.absolute()
    folder.mkdir(exist_ok=True, parents=True)
    if not (folder / SOURCE).exists():
        write_source(folder / SOURCE, options.size)
    found = mark_missing(peers(), environments)
    if options.only:
        found = [peer for peer in found if any(part in peer.name for part in options.only)]
    written(found, folder, environments)
    for threads in [] if options.prepare else options.threads:
        measure(found, folder, environments, threads, options.rounds)
    return 0


if __name__ == "__main__":
    sys.exit(main())
