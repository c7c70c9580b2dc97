"""How the weight of one product is quantized: bits, groups, method."""

from __future__ import annotations

import math
from dataclasses import dataclass
from numbers import Integral
from typing import Literal, get_args

from coreai_onnx.errors import QuantizationError
from coreai_onnx.model.weight_formats import CODE_BITS

Method = Literal["rtn", "hqq", "gptq", "awq", "palette"]
METHODS: tuple[Method, ...] = get_args(Method)
CALIBRATED: tuple[Method, ...] = ("gptq", "awq")
"""The methods that need calibration data."""
ScaleDtype = Literal["float16", "float32"]
SCALE_DTYPES: tuple[ScaleDtype, ...] = get_args(ScaleDtype)
ACTIVATION_BITS = (0, 8)
_BYTE = 8


@dataclass(frozen=True)
class Scheme:
    """How a weight ``[N, K]`` is quantized.

    Attributes:
        bits: Size of a code: 8, 4, 3 or 2.
        group_size: Number of neighbors in a row that share a scale; 0 for a whole row.
        method: ``"rtn"`` rounds to the nearest value, ``"hqq"`` fits scales and zero points
            (half-quadratic quantization), ``"gptq"`` corrects each rounding error in the columns
            after it, ``"awq"`` scales the columns that matter, ``"palette"`` stores indices into
            ``2 ** bits`` values that k-means finds. ``"gptq"`` and ``"awq"`` need calibration data.
        symmetric: Whether all groups have the zero point ``2 ** (bits - 1)``; otherwise the file
            has a zero point for each group. A palette has none.
        scale_dtype: Dtype of the scales in the file.
        activation_bits: 0, or 8 to round the input of the product to 8 bits when the model runs,
            with a scale for each group of a row, so that kernels multiply integers. A lookup has no
            such input.

    Raises:
        QuantizationError: A value is out of range.
    """

    bits: int = 4
    group_size: int = 32
    method: Method = "hqq"
    symmetric: bool = False
    scale_dtype: ScaleDtype = "float16"
    activation_bits: int = 0

    def __post_init__(self) -> None:
        """Check the values."""
        check_choice("bits", self.bits, CODE_BITS)
        check_choice("method", self.method, METHODS)
        check_choice("scale_dtype", self.scale_dtype, SCALE_DTYPES)
        check_choice("activation_bits", self.activation_bits, ACTIVATION_BITS)
        if not isinstance(self.symmetric, bool):
            raise QuantizationError(f"symmetric={self.symmetric!r}; give True or False")
        size = self.group_size
        if isinstance(size, bool) or not isinstance(size, Integral) or size < 0:
            raise QuantizationError(
                f"group_size={size!r}; give a positive number, or 0 for one scale per row"
            )
        if size * self.bits % _BYTE:
            raise QuantizationError(
                f"group_size={size}: the {self.bits}-bit codes of a group do not fill whole bytes\n"
                f"  choose a multiple of {_whole(self.bits)}"
            )
        for name in ("bits", "group_size", "activation_bits"):  # files take no integers of numpy
            object.__setattr__(self, name, int(getattr(self, name)))

    @property
    def is_symmetric(self) -> bool:
        """Whether there are no zero points."""
        return self.symmetric or self.method == "palette"

    @property
    def levels(self) -> int:
        """The number of codes."""
        return 1 << self.bits

    def group_of(self, columns: int) -> int:
        """Return the size of a group in a row of ``columns`` values; 0 if no group size fits."""
        # Each group begins at a byte, so that kernels unpack groups by themselves.
        size = self.group_size or columns
        return 0 if columns % size or size * self.bits % _BYTE else size

    def __str__(self) -> str:
        """Return ``4 bits, groups of 32, hqq``."""
        groups = f"groups of {self.group_size}" if self.group_size else "one group per row"
        return f"{self.bits} bits, {groups}, {self.method}"


def fitting_sizes(columns: int, bits: int) -> list[int]:
    """Return the group sizes from 16 to 256 that divide a row of ``columns`` values."""
    step = _whole(bits)
    # onnxruntime's MatMulNBits takes blocks of 16 or more; smaller groups have more bytes of
    # scales.
    return [n for n in range(step, min(columns, 256) + 1, step) if columns % n == 0 and n >= 16]


def _whole(bits: int) -> int:
    """Return the least number of codes that fill whole bytes."""
    return math.lcm(bits, _BYTE) // bits


def check_choice(name: str, value: object, allowed: tuple[object, ...]) -> None:
    """Check that the value of an option is one of those that are allowed.

    Raises:
        QuantizationError: The value is not allowed.
    """
    # Without it, True would pass as 1, and 4.0 as 4.
    valid = isinstance(value, str | Integral) and not isinstance(value, bool)
    if not valid or value not in allowed:
        raise QuantizationError(f"{name}={value!r}; choose from {', '.join(map(str, allowed))}")
