"""Cases of the composites that ATen ops become without any marking."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Any

import torch

from tests.support.composite_calls import Case, Shape

F32, F16, BF16 = torch.float32, torch.float16, torch.bfloat16


def activation_cases() -> Iterator[Case]:
    """Activations: ranks, and what they approximate."""
    for name in ("silu", "hard_sigmoid", "hard_swish"):
        for label, shape in {"rank3": (2, 5, 16), "rank0": (), "empty": (2, 0)}.items():
            yield Case(name, (shape,), label=label)
    for approximate in ("none", "tanh"):
        yield Case("gelu", ((2, 5, 16),), {"approximate": approximate}, label=approximate)
    for axis in (-1, 0, 1):
        yield Case("log_softmax", ((3, 5, 4),), {"axis": axis}, label=f"axis{axis}")
    yield Case("log_softmax", ((7,),), label="rank1")


def channel_norm_cases() -> Iterator[Case]:
    """Group, instance and batch norms: ranks × scale and bias × dtypes of the parameters."""
    shapes: dict[str, Shape] = {"rank3": (2, 6, 7), "rank4": (3, 6, 4, 5), "rank5": (2, 6, 2, 3, 2)}
    parameters: dict[str, tuple[Shape | None, ...]] = {
        "scale_bias": ((6,), (6,)),
        "scale": ((6,),),
        "bias": (None, (6,)),
        "plain": (),
    }
    for name in ("group_norm", "instance_norm"):
        attributes = {"num_groups": 3, "eps": 1e-3} if name == "group_norm" else {"eps": 1e-3}
        for (rank, x), (given, others) in itertools.product(shapes.items(), parameters.items()):
            yield Case(name, (x, *others), attributes, label=f"{rank}_{given}")
        for wide in (F32, BF16):
            dtypes = {1: wide, 2: wide}
            label = f"own_dtype_{str(wide).removeprefix('torch.')}"
            yield Case(name, (shapes["rank4"], (6,), (6,)), attributes, dtypes, label)
    yield Case("group_norm", ((5, 6), (6,), (6,)), {"num_groups": 2}, label="rank2")
    channels = ((6,), (6,), (6,), (6,))
    for label, x in {"rank2": (5, 6), **shapes}.items():
        yield Case("batch_norm", (x, *channels), {"eps": 1e-3}, label=label)
    for wide in (F32, F16):
        dtypes = dict.fromkeys(range(1, 5), wide)
        label = f"own_dtype_{str(wide).removeprefix('torch.')}"
        yield Case("batch_norm", (shapes["rank4"], *channels), {}, dtypes, label)


def vector_norm_cases() -> Iterator[Case]:
    """Vector norms: orders × axes × kept axes."""
    for order in (2.0, 1.0, 0.0, math.inf, -math.inf, 3.0, 0.5, -1.5):
        for axes, keep in (((-1,), 0), ((-3, -1), 1), ((-3, -2, -1), 0)):
            attributes = {"ord": order, "axes": axes, "keep_dim": keep}
            label = f"ord{order}_{len(axes)}axes{'_kept' if keep else ''}"
            yield Case("linalg_vector_norm", ((3, 4, 5),), attributes, label=label)


def pooling_cases() -> Iterator[Case]:
    """Average pooling: kernels, strides and padding × every option."""
    planes: dict[str, dict[str, Any]] = {
        "plain": {"kernel_size": (2, 3), "stride": (2, 3)},
        "padded": {"kernel_size": (3, 3), "stride": (2, 2), "padding": (1, 1, 1, 1)},
        "uneven": {"kernel_size": (3, 2), "stride": (1, 3), "padding": (1, 0, 1, 0)},
    }
    volumes: dict[str, dict[str, Any]] = {
        "plain": {"kernel_size": (2, 1, 3), "stride": (2, 1, 2)},
        "padded": {
            "kernel_size": (3, 2, 3),
            "stride": (2, 2, 2),
            "padding": (1, 1, 1, 1, 1, 1),
        },
    }
    named = (("avg_pool_2d", planes, (2, 3, 8, 10)), ("avg_pool_3d", volumes, (2, 2, 6, 5, 8)))
    for name, windows, x in named:
        options = itertools.product(windows.items(), (0, 1), (0, 1), (None, 5))
        for (label, attributes), ceil, include, divisor in options:
            modes = {"ceil_mode": ceil, "count_include_pad": include, "divisor_override": divisor}
            told = [label, *(["ceil"] if ceil else []), *(["include"] if include else [])]
            told += ["divisor"] if divisor else []
            yield Case(name, (x,), {**attributes, **modes}, label="_".join(told))


def shuffle_cases() -> Iterator[Case]:
    """Pixel shuffles of all ranks."""
    shapes = {"rank3": (8, 3, 4), "rank4": (2, 8, 3, 4), "rank5": (2, 3, 4, 3, 5)}
    for label, x in shapes.items():
        yield Case("pixel_shuffle", (x,), {"upscale_factor": 2}, label=label)


ATEN_CASES = [
    *activation_cases(),
    *channel_norm_cases(),
    *vector_norm_cases(),
    *pooling_cases(),
    *shuffle_cases(),
]
"""Every case."""
