"""Random inputs of a session."""

from __future__ import annotations

import numpy as np

from coreai_onnx.debugging.difference import Array
from coreai_onnx.errors import ComparisonError
from coreai_onnx.model.interface import TensorInfo
from coreai_onnx.runtime.sessions.session import Session


def random_array(dtype: str, dims: tuple[int, ...], rng: np.random.Generator) -> Array:
    """Return a random array: floats from the normal distribution, integers and booleans 0 or 1.

    0 and 1 are valid token ids, indices and masks for nearly every model. Both parts of complex
    numbers are normal; complex32 is returned as a complex64 array.
    """
    info = TensorInfo("", dtype, dims)
    if info.is_complex:
        parts = rng.standard_normal((*dims, 2))
        return parts.view(np.complex128)[..., 0].astype(info.numpy_dtype)
    floating = dtype.startswith(("float", "bfloat"))
    values = rng.standard_normal(dims) if floating else rng.integers(0, 2, dims)
    return np.asarray(values).astype(dtype)


def random_inputs(session: Session, seed: int = 0) -> dict[str, Array]:
    """Return random inputs for a session by name; symbolic dims are 2, or as their bounds allow.

    Raises:
        ComparisonError: If a size of an input is not known.
    """
    sizes = session.example_sizes({})
    rng, arrays = np.random.default_rng(seed), {}
    for info in session.inputs:
        dims = [dim if isinstance(dim, int) else sizes.get(str(dim)) for dim in info.dims]
        shape = tuple(size for size in dims if size is not None)
        if len(shape) < len(dims):
            raise ComparisonError(f"input {info.name!r} is {info.type_text}: give inputs=")
        arrays[info.name] = random_array(info.dtype, shape, rng)
    return arrays
