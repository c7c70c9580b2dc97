"""What this machine can do at most, measured beside the kernels: multiply-adds, reading, copying.

The loops are ``custom_ops/bench/limits.cc``, compiled for this machine when they are first needed.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import subprocess
from pathlib import Path

import numpy as np

REPO = Path(__file__).resolve().parents[2]
SOURCE = REPO / "custom_ops" / "bench" / "limits.cc"
FLAGS = ("-std=c++17", "-O3", "-march=native", "-ffp-contract=fast", "-shared", "-fPIC", "-pthread")
CACHE_LINE = 64
FMA_SECONDS = 0.02
"""About how long one measurement of the multiply-add peak takes."""
AMX_SECONDS = 0.02
"""The same for products of tiles."""


class Limits:
    """The limits of this machine for a number of threads; every method does work to be timed."""

    def __init__(self, threads: int) -> None:
        self._threads = threads
        self._library = ctypes.CDLL(str(_compiled()))
        self._library.limits_fma_flops.restype = ctypes.c_int64
        self._library.limits_bf16_flops.restype = ctypes.c_int64
        self._library.limits_amx_flops.restype = ctypes.c_int64
        self._fma_repeats = int(FMA_SECONDS * 1e11 / self._library.limits_fma_flops())
        self._buffers = (np.ones(0, np.uint8), np.ones(0, np.uint8))

    @property
    def has_bf16(self) -> bool:
        """Whether the processor multiplies bfloat16 natively."""
        return int(self._library.limits_bf16_flops()) > 0

    def fma(self) -> float:
        """Multiply and add from registers; return the number of floating-point operations."""
        self._library.limits_fma(self._threads, ctypes.c_int64(self._fma_repeats))
        return float(self._fma_repeats * self._library.limits_fma_flops() * self._threads)

    def bf16(self) -> float:
        """The same with pairs of bfloat16."""
        self._library.limits_bf16(self._threads, ctypes.c_int64(self._fma_repeats))
        return float(self._fma_repeats * self._library.limits_bf16_flops() * self._threads)

    @property
    def has_amx(self) -> bool:
        """Whether the processor multiplies tiles and this process may use them."""
        return int(self._library.limits_amx_flops()) > 0

    def amx(self, *, int8: bool = False) -> float:
        """Multiply tiles of bfloat16 (or of bytes) from registers."""
        flops = self._library.limits_amx_flops() * (2 if int8 else 1)
        repeats = int(AMX_SECONDS * 2e12 / flops)
        self._library.limits_amx(self._threads, ctypes.c_int64(repeats), ctypes.c_int(int8))
        return float(repeats * flops * self._threads)

    def read(self, size: int, repeats: int) -> float:
        """Read ``size`` bytes ``repeats`` times; return the bytes read."""
        source, _ = self._of_size(size)
        self._library.limits_read(
            self._threads,
            ctypes.c_int64(repeats),
            ctypes.c_void_p(source.ctypes.data),
            ctypes.c_int64(size),
        )
        return float(size * repeats)

    def copy(self, size: int, repeats: int) -> float:
        """Copy half of ``size`` bytes to the other half; return the bytes read and written."""
        source, target = self._of_size(size)
        self._library.limits_copy(
            self._threads,
            ctypes.c_int64(repeats),
            ctypes.c_void_p(source.ctypes.data),
            ctypes.c_void_p(target.ctypes.data),
            ctypes.c_int64(size // 2),
        )
        return float(size // 2 * 2 * repeats)

    def _of_size(self, size: int) -> tuple[np.ndarray, np.ndarray]:
        if self._buffers[0].nbytes < size:
            self._buffers = (_aligned_bytes(size), _aligned_bytes(size))
        return self._buffers


def _aligned_bytes(size: int) -> np.ndarray:
    """Ones from a whole cache line on: a vector that lies in two lines takes two loads."""
    memory = np.ones(size + CACHE_LINE, np.uint8)
    start = -memory.ctypes.data % CACHE_LINE
    return memory[start : start + size]


def _compiled() -> Path:
    """The library, compiled if its source or the processor is new."""
    cpu = Path("/proc/cpuinfo")
    model = next((x for x in cpu.read_text().splitlines() if x.startswith("flags")), "")
    key = hashlib.sha256(SOURCE.read_bytes() + model.encode()).hexdigest()[:16]
    target = REPO / "build" / "kernel_bench" / f"limits-{key}.so"
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        compiler = os.environ.get("CXX", "c++")
        subprocess.run([compiler, *FLAGS, str(SOURCE), "-o", str(target)], check=True)
    return target
