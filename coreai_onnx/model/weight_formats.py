"""How weights of few bits are stored: the parts of a weight, and what codes mean.

This is the one declaration of storage formats. A weight ``[N, K]`` is divided into groups of
neighbors in a row; `PARTS` are the inputs of a composite that hold it, and the values are those of
`coreai_onnx.composites.few_bit_weights.dequantized`. A format of a library that stores such parts
under other names or in another order of bits needs a reader in `huggingface/checkpoints` only.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class WeightPart:
    """A part of a weight: an input of ``linear_nbits``, ``gather_mm_nbits``, ``embedding_nbits``.

    Attributes:
        name: The name of the input.
        dtype: As for an input of a composite.
        dims: Its dims after those of the rows: groups ``G``, bytes of a group ``B``, values ``P``,
            blocks of groups ``S``, which are the groups unless there are ``scale_codes``, bytes of
            the scale codes of a block ``C``, rows ``R`` and codes of a row ``V`` of a table,
            numbers of a block ``L`` and what describes one, ``F``.
        optional: Whether a weight may lack it.
    """

    name: str
    dtype: str
    dims: str
    optional: bool = False

    @property
    def by_row(self) -> bool:
        """Whether each row of the weight has its own, so that rows can be taken and stacked."""
        return self.dims[0] in "GS"


PARTS = (
    WeightPart("codes", "uint8", "G B"),
    WeightPart("scales", "any", "S"),
    WeightPart("zero_points", "any", "G", optional=True),
    WeightPart("palette", "any", "P", optional=True),
    WeightPart("minimums", "any", "S", optional=True),
    WeightPart("scale_codes", "uint8", "S C", optional=True),
    WeightPart("table", "uint8", "R V", optional=True),
    WeightPart("layout", "int32", "L F", optional=True),
)
NAMES = tuple(part.name for part in PARTS)
BY_ROW = tuple(part.name for part in PARTS if part.by_row)
OPTIONAL = tuple(part.name for part in PARTS if part.optional)
BEFORE_BIAS = 4
"""The number of parts before the bias of `linear_nbits`; later ones follow it, so that older files
mean the same."""
BLOCK_SIZE = 256
"""The number of values in a block of codes that a table has, that of GGUF's types."""


@dataclass(frozen=True)
class CodeFormat:
    """What the codes of a weight mean.

    Attributes:
        bits: Size of a code.
        numbers: The dtype whose numbers the codes are, which is a palette; empty for integers, from
            which a zero point is subtracted.
        group_size: Number of neighbors with one scale, where the format defines it; 0 otherwise.
    """

    bits: int
    numbers: str = ""
    group_size: int = 0


E2M1, E4M3 = "float4_e2m1fn", "float8_e4m3fn"
FORMATS = {
    **{f"int{bits}": CodeFormat(bits) for bits in (8, 4, 3, 2)},
    E2M1: CodeFormat(4, E2M1),
    E4M3: CodeFormat(8, E4M3),
    "float8_e5m2": CodeFormat(8, "float8_e5m2"),
    # OCP Microscaling Formats 1.0: scales are powers of 2.
    "mxfp4": CodeFormat(4, E2M1, 32),
    # Scales are float8, as multiples of one scale of the tensor.
    "nvfp4": CodeFormat(4, E2M1, 16),
}
"""The formats by the names that checkpoints and torch use for them."""
CODE_BITS = tuple(sorted({one.bits for one in FORMATS.values()}, reverse=True))
"""The sizes of a code that the quantizer writes, in bits."""
PRODUCT_BITS = (8, 6, 5, 4, 3, 2)
"""The sizes of a code in products, in bits; kernels and bodies have them all."""
SCALE_BITS = {"": (8, 6), "palette": (6,), "minimums": (6, 4)}
"""The sizes of a code of a scale, in bits, by the part beside the scales: those of GGUF's types.

Every combination is an op type that a session registers, in each dtype.
"""
