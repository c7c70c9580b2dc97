"""Lowerings of torch ops, one file per family; importing this package registers them."""

from coreai_onnx.lower.aten.complex import numbers as complex_numbers
from coreai_onnx.lower.aten.complex import shapes as complex_shapes
from coreai_onnx.lower.aten.indexing import partial_writes, scatter
from coreai_onnx.lower.aten.indexing import selection as indexing
from coreai_onnx.lower.aten.linalg import cholesky as linalg_cholesky
from coreai_onnx.lower.aten.linalg import grouped_matmul, matmul
from coreai_onnx.lower.aten.linalg import ldl as linalg_ldl
from coreai_onnx.lower.aten.linalg import lu as linalg_lu
from coreai_onnx.lower.aten.linalg import qr as linalg_qr
from coreai_onnx.lower.aten.linalg import spectral as linalg_spectral
from coreai_onnx.lower.aten.nn import (
    adaptive_pooling,
    attention,
    batch_normalization,
    convolution,
    embedding,
    loss,
    normalization,
    own_ops,
    pooling,
    recurrent,
    sampling_grid,
    softmax,
    state_space,
    upsampling,
)
from coreai_onnx.lower.aten.ordering import histograms, quantiles, searching, sorting, unique
from coreai_onnx.lower.aten.pointwise import (
    activation,
    activation_quantization,
    arithmetic,
    comparison,
    conversion,
    error_function,
    float_bits,
    logic,
    masking,
    powers,
    quantization,
    trigonometry,
    unary_math,
)
from coreai_onnx.lower.aten.random import draws as randomness
from coreai_onnx.lower.aten.random import hashing
from coreai_onnx.lower.aten.reduction import (
    cumulative,
    distance,
    extremes,
    moments,
    quantization_parameters,
)
from coreai_onnx.lower.aten.reduction import sums as reduction
from coreai_onnx.lower.aten.shape import (
    block_scales,
    combining,
    creation,
    padding,
    ranges,
    splitting,
    strided,
    views,
)
from coreai_onnx.lower.aten.signal import fourier, fourier_calls, windows
from coreai_onnx.lower.aten.special import airy as special_airy
from coreai_onnx.lower.aten.special import bessel as special_bessel
from coreai_onnx.lower.aten.special import gamma as special_gamma
from coreai_onnx.lower.aten.special import polynomial as special_polynomial

__all__ = [
    "activation",
    "activation_quantization",
    "adaptive_pooling",
    "arithmetic",
    "attention",
    "batch_normalization",
    "block_scales",
    "combining",
    "comparison",
    "complex_numbers",
    "complex_shapes",
    "conversion",
    "convolution",
    "creation",
    "cumulative",
    "distance",
    "embedding",
    "error_function",
    "extremes",
    "float_bits",
    "fourier",
    "fourier_calls",
    "grouped_matmul",
    "hashing",
    "histograms",
    "indexing",
    "linalg_cholesky",
    "linalg_ldl",
    "linalg_lu",
    "linalg_qr",
    "linalg_spectral",
    "logic",
    "loss",
    "masking",
    "matmul",
    "moments",
    "normalization",
    "own_ops",
    "padding",
    "partial_writes",
    "pooling",
    "powers",
    "quantiles",
    "quantization",
    "quantization_parameters",
    "randomness",
    "ranges",
    "recurrent",
    "reduction",
    "sampling_grid",
    "scatter",
    "searching",
    "softmax",
    "sorting",
    "special_airy",
    "special_bessel",
    "special_gamma",
    "special_polynomial",
    "splitting",
    "state_space",
    "strided",
    "trigonometry",
    "unary_math",
    "unique",
    "upsampling",
    "views",
    "windows",
]
