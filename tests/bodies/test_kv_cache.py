"""The body of the cache update: ONNX's own op where there is one, else a scatter."""

from __future__ import annotations

import pytest
import torch

from tests.lower.checking import run_model
from tests.support.composite_calls import Case
from tests.support.tolerances import assert_close

NAME, TYPES = "kv_cache_update", {2: torch.int64}


def case(length: int, position: tuple[int, ...] = (), *, batch: int = 2, places: int = 9) -> Case:
    shapes = ((batch, 3, places, 4), (batch, 3, length, 4), position)
    return Case(NAME, shapes, {}, TYPES, limit=places - length + 1)


@pytest.mark.parametrize(("opset", "op_type"), [(23, "ScatterND"), (24, "TensorScatter")])
def test_which_op_writes(opset: int, op_type: str) -> None:
    (function,) = case(2).model(torch.float32, dynamic=True, opset=opset).functions.values()
    assert op_type in {n.op_type for n in function}


@pytest.mark.parametrize("opset", [18, 24])
@pytest.mark.parametrize("position", [(), (2,)], ids=["one", "per_row"])
def test_one_body_serves_every_size(position: tuple[int, ...], opset: int) -> None:
    model = case(2, position).model(torch.float32, dynamic=True, opset=opset)
    for other in (case(2, position), case(1, position, places=50), case(9, position)):
        inputs = other.inputs(torch.float32)
        assert_close(run_model(model, inputs), other.expected_outputs(inputs))


@pytest.mark.parametrize("opset", [18, 24])
def test_a_place_behind_the_cache_is_an_error(opset: int) -> None:
    some = case(2)
    inputs = [*some.inputs(torch.float32)[:2], torch.tensor(8)]
    with pytest.raises(Exception, match=r"(?i)out of bounds|invalid|exceed"):
        run_model(some.model(torch.float32, dynamic=True, opset=opset), inputs)
