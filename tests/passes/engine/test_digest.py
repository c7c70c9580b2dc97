from __future__ import annotations

import tracemalloc

import ml_dtypes
import numpy as np
import onnx_graphsurgeon as gs

from coreai_onnx.passes.engine.digest import digest, fingerprint


def constant(values) -> gs.Constant:
    return gs.Constant("c", np.asarray(values))


def test_equal_bytes_have_equal_digests() -> None:
    values = np.arange(100_000, dtype=np.float32)
    assert fingerprint(constant(values)) == fingerprint(constant(values.copy()))
    assert digest(constant(values)) == digest(constant(values.copy()))


def test_one_bit_makes_a_difference() -> None:
    values = np.zeros(2_000_000, np.float32)
    other = values.copy()
    other[1_234_567] = -0.0
    assert digest(constant(values)) != digest(constant(other))


def test_dtype_and_shape_make_a_difference() -> None:
    zeros = np.zeros(4, np.int32)
    forms = [zeros, zeros.view(np.float32), zeros.reshape(2, 2), zeros.astype(ml_dtypes.bfloat16)]
    assert len({fingerprint(constant(form)) for form in forms}) == 4


def test_scalars_empties_and_strings() -> None:
    assert digest(constant(np.float32(1))) == digest(constant(np.ones((), np.float32)))
    assert digest(constant(np.zeros((0, 3)))) == digest(constant(np.zeros((0, 3))))
    assert digest(constant(np.array(["a", "b"], object))) != digest(
        constant(np.array(["ab"], object))
    )


def test_nothing_is_copied() -> None:
    big = constant(np.zeros(16 << 20, np.uint8))
    tracemalloc.start()
    digest(big)
    fingerprint(big)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1 << 20
