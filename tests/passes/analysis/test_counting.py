from __future__ import annotations

import numpy as np
import onnx_graphsurgeon as gs

from coreai_onnx.passes.analysis.amounts import Amount
from coreai_onnx.passes.analysis.counting import Counting
from coreai_onnx.passes.analysis.counts import Count
from coreai_onnx.passes.engine.surgeon import open_model
from tests.passes.rewriting import parse


def known(text: str) -> object:
    return Counting().of(open_model(parse(text)).outputs[0])


def test_constants_that_count() -> None:
    text = "main (float[s] x) => (int64[2, 3] y) <int64[2, 3] c = {0, 2, 4, 5, 7, 9}> { y = Identity (c) }"
    assert known(text) == Count(Amount(0), (5, 2), (Amount(2), Amount(3)))
    assert known(text.replace("9}", "8}")) is None


def test_small_integers_may_wrap_round_and_are_not_followed() -> None:
    text = "main (float[s] x) => (uint8[2] y) <uint8[2] c = {0, 1}> { y = Identity (c) }"
    assert known(text) is None


def test_inputs_and_other_ops_are_not_known() -> None:
    assert known("main (int64[s] x) => (int64[s] y) { y = Identity (x) }") is None
    assert known("main (int64[s] x) => (int64[s] y) { y = Neg (x) }") is None


def test_endless_chains_are_given_up() -> None:
    tensor = gs.Constant("c", np.zeros(2, np.int64))
    for index in range(80):
        out = gs.Variable(f"v{index}")
        gs.Node("Identity", inputs=[tensor], outputs=[out])
        tensor = out
    assert Counting().of(tensor) is None


def test_what_is_known_is_not_known_of_a_tensor_made_later() -> None:
    counting = Counting()
    for index in range(50):  # each may get the id of the one before
        constant = gs.Constant("c", np.full(1, index, np.int64))
        assert counting.of(constant) == Count(Amount(index), (0,), (Amount(1),))
