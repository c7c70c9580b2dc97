from __future__ import annotations

import gc
import weakref

import numpy as np
import onnx_graphsurgeon as gs
import pytest

from coreai_onnx.passes.engine.tensor_table import TensorTable


def test_tensors_of_one_name_are_two() -> None:
    table: TensorTable[int] = TensorTable()
    first, second = gs.Variable("x"), gs.Variable("x")
    table[first] = 1
    assert first in table
    assert table[first] == 1
    assert second not in table
    assert (table.get(first), table.get(second)) == (1, None)
    with pytest.raises(KeyError):
        table[second]


def test_a_tensor_stays_so_that_no_other_gets_its_id() -> None:
    table: TensorTable[None] = TensorTable()
    tensor = gs.Constant("c", np.zeros(2, np.int64))
    table[tensor] = None
    alive = weakref.ref(tensor)
    del tensor
    gc.collect()
    assert alive() is not None
