"""What onnxruntime reaches on this machine: operations and bytes per second."""

from __future__ import annotations

import functools
import time
from dataclasses import dataclass

import numpy as np
import onnx.parser
import onnxruntime as ort

from coreai_onnx.runtime.states.binding import Binding
from coreai_onnx.runtime.tensors.values import to_ort

# 1 MiB per operand stays in the caches, so that arithmetic limits the product; 64 MiB of float32 do
# not, so that memory limits the negation. Other load only makes a call slower: the best counts.
_SIDE = 512
_ELEMENTS = 1 << 24
_REPEATS = 10


@dataclass(frozen=True)
class Peaks:
    """The limits of a roofline.

    Attributes:
        flops: Operations per second of a float32 product of two 512 × 512 matrices.
        bandwidth: Bytes per second that a negation of 64 MiB reads and writes.
    """

    flops: float
    bandwidth: float

    def seconds(self, flops: float, moved: float) -> float:
        """Return the least time for an amount of work: that of its operations or of its bytes."""
        return max(flops / self.flops, moved / self.bandwidth)

    def __str__(self) -> str:
        """Return both limits and how they were measured."""
        return (
            f"{self.flops / 1e9:.1f} GFLOP/s (float32 product of {_SIDE} × {_SIDE}), "
            f"{self.bandwidth / 1e9:.1f} GB/s (negation of 64 MiB), the best of {_REPEATS}"
        )


@functools.cache
def measured_peaks(threads: int | None = None) -> Peaks:
    """Measure the limits with onnxruntime, once per number of threads.

    Args:
        threads: Threads per operator; None lets onnxruntime choose.
    """
    square = np.ones((_SIDE, _SIDE), np.float32)
    product = _best("MatMul", [square, square], threads)
    negation = _best("Neg", [np.ones(_ELEMENTS, np.float32)], threads)
    return Peaks(2.0 * _SIDE**3 / product, 8.0 * _ELEMENTS / negation)


def _best(op: str, arrays: list[np.ndarray], threads: int | None) -> float:
    names, dims = [f"x{i}" for i in range(len(arrays))], [*arrays[0].shape]
    inputs = ", ".join(f"float{dims} {name}" for name in names)
    model = onnx.parser.parse_model(
        f'<ir_version: 10, opset_import: ["": 21]> '
        f"graph ({inputs}) => (float{dims} y) {{ y = {op}({', '.join(names)}) }}"
    )
    options = ort.SessionOptions()
    if threads is not None:
        options.intra_op_num_threads = threads
    session = ort.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    # Bound memory: `run` would allocate each result, and the time would include its page faults.
    feeds = {name: to_ort(array) for name, array in zip(names, arrays, strict=True)}
    binding = Binding(session, ["y"], feeds, {"y": to_ort(np.empty_like(arrays[0]))})
    seconds = []
    for _ in range(_REPEATS + 1):
        start = time.perf_counter()
        binding.run({}, {})
        seconds.append(time.perf_counter() - start)
    # The first call allocates and plans.
    return min(seconds[1:])
