"""Sessions made, run and thrown away by the thousand, and what memory the process then has.

    python -m tests.custom_ops.many_sessions 10000 build/ops/libcoreai_onnx_ops.so

makes ten thousand sessions of a model with every op and writes the resident memory after each tenth
of them. One in twenty registers every op type, the others those of the model: onnxruntime takes
longer over the schemas of all than over the rest of the session. Then it writes the time to open a
session of each kind.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import os
import sys
import time
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper

DOMAIN = "ai.coreai"
ORT_SILENT = 4
EVERYTHING_ONE_IN = 20
BATCH, HEADS, LENGTH, DIM = 1, 4, 24, 32
SHAPE = [BATCH, HEADS, LENGTH, DIM]
ROWS = [BATCH, LENGTH, HEADS * DIM]
EXPERTS = 4


def _random(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def _constants() -> dict[str, np.ndarray]:
    """The constants of the model; its matrices are 256 KiB."""
    width = HEADS * DIM
    return {
        "scale": _random(1, width),
        "experts": _random(2, EXPERTS, width, width),
        "expert": np.arange(LENGTH, dtype=np.int64)[None] % EXPERTS,
        "codes": np.arange(width * width // 2, dtype=np.uint8).reshape(width, width // 32, 16),
        "code_scales": np.abs(_random(5, width, width // 32)) / 64,
        "expert_codes": np.arange(EXPERTS * width * width // 2, dtype=np.uint8).reshape(
            EXPERTS, width, width // 32, 16
        ),
        "expert_scales": np.abs(_random(6, EXPERTS, width, width // 32)) / 64,
        "down": _random(7, width, 2),
        "up": _random(8, 2, width),
        "zero": np.array(0, dtype=np.int64),
        "zeros": np.array([0], dtype=np.int64),
        "decay": -np.abs(_random(3, BATCH, HEADS, LENGTH)),
        "beta": np.abs(_random(4, BATCH, HEADS, LENGTH)) % 1,
        "pages": np.array([BATCH * LENGTH // 4, 4, HEADS, DIM], dtype=np.int64),
        "step_pages": np.array([BATCH * LENGTH // 4, 4, HEADS, 1], dtype=np.int64),
        "table": np.arange(BATCH * LENGTH // 4, dtype=np.int64).reshape(BATCH, -1),
        "bytes": np.arange(BATCH * HEADS * LENGTH * DIM)
        .reshape(BATCH, HEADS, LENGTH, DIM)
        .astype(np.uint8),
        "steps": np.full((BATCH, HEADS, LENGTH, 1), 0.01, np.float32),
        "heads": np.array([BATCH, HEADS, LENGTH, DIM], dtype=np.int64),
        "rows": np.array(ROWS, dtype=np.int64),
        "channels": np.array([BATCH, HEADS * DIM, LENGTH], dtype=np.int64),
        "image": np.array([1, BATCH * HEADS * DIM, LENGTH, 1], dtype=np.int64),
        "filters": _random(9, HEADS * DIM, HEADS * DIM, 1, 1) / HEADS,
        "one_row": np.array([BATCH, LENGTH, 1, width], dtype=np.int64),
    }


def _nodes() -> list[onnx.NodeProto]:
    """A call of each kernel."""

    def call(
        op: str, inputs: list[str], outputs: list[str], **attributes: object
    ) -> onnx.NodeProto:
        return helper.make_node(op, inputs, outputs, domain=DOMAIN, **attributes)

    return [
        call("linear_nbits", ["x", "codes", "code_scales"], ["looked"]),
        call("add_bias", ["looked", "scale"], ["biased"]),
        call("rms_norm", ["biased", "scale"], ["normed"]),
        call("add_low_rank", ["normed", "biased", "down", "up"], ["adapted_alone"]),
        helper.make_node("Unsqueeze", ["adapted_alone", "zeros"], ["part"]),
        call("all_reduce", ["part"], ["part_of_all"], ranks=1),
        call("all_gather", ["part_of_all"], ["parts"], ranks=1),
        helper.make_node("Squeeze", ["parts", "zeros"], ["adapted"]),
        call("layer_norm", ["adapted", "scale"], ["centered"]),
        helper.make_node("Reshape", ["centered", "heads"], ["query"]),
        call("rope", ["query"], ["turned"]),
        call("kv_cache_update", ["query", "turned", "zero"], ["key"]),
        call("scaled_dot_product_attention", ["turned", "key", "query"], ["mixed"], is_causal=1),
        call("scaled_dot_product_attention_bshd", ["mixed"] * 3, ["mixed_rows"]),
        helper.make_node("Reshape", ["key", "pages"], ["pool"]),
        call("attention_nbits", ["key", "bytes", "steps", "bytes", "steps"], ["coded"]),
        helper.make_node("Add", ["mixed_rows", "coded"], ["both"]),
        call("paged_attention", ["both", "pool", "pool", "table"], ["from_blocks"]),
        helper.make_node("Reshape", ["bytes", "pages"], ["byte_pool"]),
        helper.make_node("Reshape", ["steps", "step_pages"], ["step_pool"]),
        call(
            "paged_attention_nbits",
            ["from_blocks", "byte_pool", "step_pool", "byte_pool", "step_pool", "table"],
            ["paged"],
        ),
        call("gated_delta_update", ["turned", "key", "paged", "decay", "beta"], ["delta", "state"]),
        helper.make_node("Reshape", ["delta", "rows"], ["hidden"]),
        call("skip_rms_norm", ["hidden", "x", "scale"], ["skipped", "sum"]),
        call("skip_layer_norm", ["skipped", "sum", "scale"], ["again"]),
        helper.make_node("Reshape", ["again", "one_row"], ["row"]),
        call("gather_mm", ["row", "experts", "", "expert"], ["expanded"]),
        call(
            "gather_mm_nbits", ["expanded", "expert_codes", "expert_scales", "expert"], ["narrow"]
        ),
        helper.make_node("Reshape", ["narrow", "channels"], ["wide"]),
        call("group_norm", ["wide"], ["grouped"], num_groups=4),
        call("swiglu", ["grouped", "wide"], ["gated"]),
        helper.make_node("Reshape", ["gated", "image"], ["planes"]),
        call("convolution", ["planes", "filters"], ["filtered"]),
        helper.make_node("Reshape", ["filtered", "channels"], ["seen"]),
        call("softmax", ["seen"], ["chosen"]),
        call("geglu", ["chosen", "grouped"], ["y"]),
    ]


def every_op_model() -> onnx.ModelProto:
    """A model that calls each of the kernels once."""
    graph = helper.make_graph(
        _nodes(),
        "every_op",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ROWS)],
        [
            helper.make_tensor_value_info("y", TensorProto.FLOAT, None),
            helper.make_tensor_value_info("state", TensorProto.FLOAT, None),
        ],
        [numpy_helper.from_array(value, name) for name, value in _constants().items()],
    )
    return helper.make_model(
        graph,
        opset_imports=[helper.make_opsetid("", 18), helper.make_opsetid(DOMAIN, 1)],
        ir_version=10,
    )


def op_types_of(model: onnx.ModelProto) -> str:
    """What ``coreai.op_types`` is for a model."""
    return ",".join(sorted({n.op_type for n in model.graph.node if n.domain == DOMAIN}))


def example_input() -> np.ndarray:
    """The input of ``every_op_model``."""
    return _random(0, *ROWS)


def session_of(
    model: bytes, library: Path, op_types: str = "", threads: int = 1
) -> ort.InferenceSession:
    """Open a session with the kernels of ``op_types``, or with all."""
    options = ort.SessionOptions()
    options.log_severity_level = ORT_SILENT
    options.intra_op_num_threads = threads
    if op_types:
        options.add_session_config_entry("coreai.op_types", op_types)
    options.register_custom_ops_library(str(library))
    return ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def resident_bytes() -> int:
    """Memory of this process, with what the allocator could give back given back."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def memory_over(count: int, marks: int, library: Path) -> list[int]:
    """Resident bytes after each of ``marks`` equal shares of ``count`` sessions."""
    model = every_op_model()
    op_types = op_types_of(model)
    file, x = model.SerializeToString(), example_input()
    wanted = session_of(file, library).run(None, {"x": x})
    taken = []
    for i in range(count):
        session = session_of(file, library, op_types if i % EVERYTHING_ONE_IN else "")
        found = session.run(None, {"x": x})
        assert all(map(np.array_equal, found, wanted))
        del session
        if (i + 1) % (count // marks) == 0:
            taken.append(resident_bytes())
    return taken


def opening_seconds(library: Path, rounds: int = 10) -> tuple[float, float]:
    """CPU time to open a session with every op type, and with those of the model; minima."""
    model = every_op_model()
    file = model.SerializeToString()
    seconds = []
    for op_types in ("", op_types_of(model)):
        times = []
        for _ in range(rounds):
            start = time.process_time()
            session_of(file, library, op_types)
            times.append(time.process_time() - start)
        seconds.append(min(times))
    return seconds[0], seconds[1]


def main() -> None:
    """Write the resident bytes as JSON, and times on stderr."""
    parser = argparse.ArgumentParser()
    parser.add_argument("count", type=int)
    parser.add_argument("library", type=Path)
    parser.add_argument("--marks", type=int, default=10)
    options = parser.parse_args()
    start = time.monotonic()
    sys.stdout.write(json.dumps(memory_over(options.count, options.marks, options.library)) + "\n")
    sys.stderr.write(f"{time.monotonic() - start:.1f} s\n")
    every, called = opening_seconds(options.library)
    sys.stderr.write(f"a session: {every:.4f} s with every op type, {called:.4f} s with its own\n")


if __name__ == "__main__":
    main()
