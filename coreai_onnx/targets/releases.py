"""Releases of onnxruntime, and what each of them introduced.

This is the only file of the package with such numbers (`tests/rules/test_releases.py`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import overload

from coreai_onnx.errors import CoreaiError, StagingError, TargetError

Release = tuple[int, int]

OLDEST: Release = (1, 18)
"""The first release with opset 21 and IR version 10, that of the files."""
OLDEST_TESTED: Release = (1, 21)
"""The oldest release that files are tested with (docs/runtimes.md), and the first with the C API
that kernels are compiled with."""
DEVICES: Release = (1, 24)
"""The first release whose Python package lists the devices of execution providers."""
NEWEST_OPSET: dict[Release, int] = {
    OLDEST: 21, OLDEST_TESTED: 22, (1, 23): 23, (1, 24): 25, (1, 25): 26
}  # fmt: skip
"""The newest opset of a release and those after it (measured: tests/compat/test_opsets.py)."""
_OWN = "com.microsoft"  # this file imports no library, and so not `inventory.CONTRIB_DOMAIN`
_EIGHT_BITS = ("float8e4m3fn", "float8e4m3fnuz", "float8e5m2", "float8e5m2fnuz")
_CONTRIB: dict[tuple[str, str], Release] = {
    # Before, 4-bit zero points give wrong results, and 2 bits fail.
    ("GatherBlockQuantized", ""): (1, 27),
    **{("GatherBlockQuantized", dtype): (1, 31) for dtype in ("float4e2m1", *_EIGHT_BITS)},
    # From input 9 on: position_ids, and the bias of the scores, which a mask becomes.
    ("GroupQueryAttention", "input 9"): (1, 23),
    ("GroupQueryAttention", "input 11"): (1, 23),  # the sinks
    ("GroupQueryAttention", "qk_output"): (1, 23),
    ("GroupQueryAttention", "input 12"): (1, 25),  # the scales of 8-bit caches
    ("GroupQueryAttention", "kv_cache_bit_width"): (1, 25),
    ("GroupQueryAttention", "k_quant_type"): (1, 25),
    ("GroupQueryAttention", "v_quant_type"): (1, 25),
    ("GroupQueryAttention", "int8"): (1, 27),
    ("GroupQueryAttention", "uint8"): (1, 27),
    ("GroupQueryAttention", "input 14"): (1, 28),  # the norms of queries and keys
    ("GroupQueryAttention", "qk_norm_epsilon"): (1, 28),
    ("GroupQueryAttention", "sliding_window_cache"): (1, 29),
    ("GroupQueryAttention", "causal"): (1, 30),
    # Before, a query attended to one key more than the window has.
    ("GroupQueryAttention", "local_window_size"): (1, 24),
    ("LinearAttention", ""): (1, 25),
    ("LinearAttention", "state_window"): (1, 29),
    ("MatMulNBits", "weight_prepacked"): (1, 28),
    ("MoE", ""): (1, 23),  # with a swiglu
    ("MultiHeadAttention", "input 8"): (1, 22),
    ("QMoE", ""): (1, 25),
    ("QMoE", "expert_weight_bits=2"): (1, 27),
    ("QMoE", "input 15"): (1, 27),
    ("QMoE", "quant_type"): (1, 27),
    ("QMoE", "weights_prepacked"): (1, 28),
    ("QMoE", "accuracy_level"): (1, 31),
    ("QMoE", "fc1_expert_weight_bits"): (1, 31),
    ("QMoE", "fc2_expert_weight_bits"): (1, 31),
    ("QMoE", "fc3_expert_weight_bits"): (1, 31),
    ("SkipLayerNormalization", "bfloat16"): (1, 30),
    ("SkipSimplifiedLayerNormalization", "bfloat16"): (1, 30),
}
# onnxruntime has had CPU kernels for the others since it took the opset. It computes float16 in
# float32 where it has no kernel, so that 16 bits are no entry.
_FOUR_BITS = ("DequantizeLinear", "QuantizeLinear", "Transpose")
_SHORT_INTEGERS = ("int8", "int16", "uint8", "uint16")
_STANDARD: dict[tuple[str, str], Release] = {
    **{
        (op, dtype): (1, 21)
        for op in "Add Div Equal Greater GreaterOrEqual Less LessOrEqual Mul Sub".split()
        for dtype in (*_SHORT_INTEGERS, "uint32", "uint64")
    },
    **{(op, "double"): (1, 20) for op in "ReduceL1 ReduceL2 ReduceLogSum ReduceProd".split()},
    **{(op, dtype): (1, 24) for op in ("Max", "Min") for dtype in ("int8", "uint8")},
    **{("TopK", dtype): (1, 26) for dtype in ("int8", "int16", "uint8")},
    ("ArgMax", "int64"): (1, 20),
    ("ArgMin", "int64"): (1, 20),
    ("ArgMin", "int8"): (1, 20),
    ("ArgMin", "uint8"): (1, 20),
    ("ConvInteger", "int8"): (1, 24),
    **{("Cast", dtype): (1, 23) for dtype in ("int4", "uint4")},
    **{("Cast", dtype): (1, 24) for dtype in ("int2", "uint2")},
    ("Cast", "float8e8m0"): (1, 27),
    **{(op, d): (1, 19) for op in _FOUR_BITS for d in ("int4", "uint4")},
    **{("Transpose", dtype): (1, 19) for dtype in _EIGHT_BITS},
    ("Cos", "double"): (1, 29),
    ("DeformConv", ""): (1, 25),
    ("DepthToSpace", "int8"): (1, 28),
    ("DepthToSpace", "uint8"): (1, 21),
    # Without a bias, the AttentionFusion of 1.18 may end the process.
    ("LayerNormalization", "2 inputs"): (1, 19),
    ("LayerNormalization", "bfloat16"): (1, 30),
    ("Neg", "int16"): (1, 21),
    ("QLinearMatMul", "float"): (1, 20),
    ("ReduceMean", "int64"): (1, 20),
    ("SpaceToDepth", "int8"): (1, 28),
    ("SpaceToDepth", "uint8"): (1, 28),
    ("SplitToSequence", "bool"): (1, 23),
    ("TensorScatter", ""): (1, 25),
    ("Trilu", "bool"): (1, 19),
    ("Trilu", "int32"): (1, 29),
    ("Where", "int8"): (1, 31),
    ("Where", "uint32"): (1, 31),
}
SINCE: dict[tuple[str, str, str], Release] = {
    **{(_OWN, *form): since for form, since in _CONTRIB.items()},
    **{("", *form): since for form, since in _STANDARD.items()},
}
"""The first release that computes an op correctly on a CPU, by domain, name and form: ``""`` for
any, an attribute, its value, an input, the number of inputs, or the dtype of an input.

Without an entry, it is the first release with the opset, and `OLDEST_TESTED` for onnxruntime's own
ops. Measured with the releases of docs/runtimes.md; their registries of ops and kernels are in
tests/targets/first_releases.json."""
CONTRIB_SLOW_SINCE: dict[str, Release] = {
    "SkipLayerNormalization": (1, 30),
    "SkipSimplifiedLayerNormalization": (1, 30),
}
"""The first release in which an op is slower than the ops that it replaces, by up to four times
(docs/internals/performance_log.md, Norms)."""


def since(
    domain: str,
    op_type: str,
    attributes: Mapping[str, object],
    inputs: int = 0,
    dtypes: Sequence[str] = (),
) -> Release:
    """Return the first onnxruntime release that computes an op correctly on a CPU.

    Args:
        domain: ``""`` or ``"com.microsoft"``.
        op_type: The op.
        attributes: Its attributes.
        inputs: Number of its inputs, absent ones included.
        dtypes: The dtypes of its inputs, in order, ``"float"``; ``""`` for an unknown one.
    """
    forms = {"", *attributes, *(f"input {index}" for index in range(inputs))}
    forms |= {f"{inputs} inputs", *dtypes[:1]}
    # int64 of a further input is that of axes and sizes.
    forms |= {*dtypes[1:]} - {"int64"}
    forms |= {f"{name}={value}" for name, value in attributes.items() if isinstance(value, int)}
    without = OLDEST_TESTED if domain == _OWN else OLDEST
    return max(SINCE.get((domain, op_type, form), without) for form in forms)


@overload
def release_of(version: str, error: type[CoreaiError] = TargetError) -> Release: ...
@overload
def release_of(version: None, error: type[CoreaiError] = TargetError) -> None: ...
def release_of(version: str | None, error: type[CoreaiError] = TargetError) -> Release | None:
    """Return the release of a ``minimum_onnxruntime``, ``(1, 22)`` for "1.22.1"; None for None.

    Args:
        version: The version.
        error: The error to raise.

    Raises:
        CoreaiError: If it is not a version, or older than 1.18.
    """
    if version is None:
        return None
    # A patch release adds no op and no opset, so two numbers are enough.
    numbers = re.match(r"(\d+)\.(\d+)", version) if isinstance(version, str) else None
    if numbers is None:
        raise error(f"minimum_onnxruntime must be a version like '1.22', got {version!r}")
    release = int(numbers[1]), int(numbers[2])
    if release < OLDEST:
        raise error(f"minimum_onnxruntime must be {text_of(OLDEST)} or later, got {version}")
    return release


def text_of(release: Release) -> str:
    """Return a release as text, ``"1.22"``."""
    return ".".join(map(str, release))


def newest_opset(onnxruntime: str) -> int:
    """Return the newest opset that an onnxruntime release supports: ``newest_opset("1.22") == 22``.

    Raises:
        StagingError: If the text is not a version, or the release is older than 1.18.
    """
    release = release_of(onnxruntime, StagingError)
    return max(opset for since, opset in NEWEST_OPSET.items() if since <= release)


def oldest_onnxruntime(opset: int) -> str:
    """Return the oldest onnxruntime release that supports an opset: ``"1.21"`` for 22."""
    return text_of(min(since for since, newest in NEWEST_OPSET.items() if newest >= opset))
