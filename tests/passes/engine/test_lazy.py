from __future__ import annotations

import numpy as np
import onnx_graphsurgeon as gs

from coreai_onnx.passes.engine.lazy import is_lazy, joined_name, lazy_constant, nbytes
from coreai_onnx.passes.engine.weight import tensor_from_constant


def test_nothing_is_computed_before_it_is_read() -> None:
    calls = []

    def twice(x: np.ndarray) -> np.ndarray:
        calls.append(x)
        return x * 2

    source = gs.Constant("w", np.arange(6, dtype=np.float32).reshape(2, 3))
    constant = lazy_constant("w2", twice, [source], [2, 3])
    assert (is_lazy(constant), is_lazy(source), nbytes(constant)) == (True, False, 24)
    assert (list(constant.shape), constant.dtype, constant.name) == ([2, 3], np.float32, "w2")
    assert calls == []
    tensor = tensor_from_constant(constant)
    np.testing.assert_array_equal(tensor.numpy(), [[0, 2, 4], [6, 8, 10]])
    tensor.numpy()
    assert len(calls) == 2  # and nothing is kept


def test_what_names_share_is_written_once() -> None:
    assert joined_name(["a.q.weight", "a.k.weight", "a.v.weight"]) == "a.q+k+v.weight"
    assert joined_name(["q", "k"]) == "q+k"
    assert joined_name(["a.q"]) == "a.q"
    assert joined_name(["a.0.w", "a.1.b"]) == "a.0.w+1.b"
