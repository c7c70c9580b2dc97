from __future__ import annotations

import numpy as np
import pytest

from coreai_onnx.passes.cleanup.remove_single_inputs import remove_single_inputs
from tests.passes.rewriting import leaves, rewrite, same_numbers


@pytest.mark.parametrize(
    "op", ["Concat <axis = 0>", "Sum", "Mean", "Max", "Min", "Split <num_outputs = 1>"]
)
def test_one_input_is_the_result(op) -> None:
    text = f"main (float[4] x) => (float[4] z) {{ y = {op} (x)  z = Neg (y) }}"
    rewrite(text, remove_single_inputs, 1, "main (float[4] x) => (float[4] z) { z = Neg (x) }")
    same_numbers(text, remove_single_inputs, {"x": np.ones(4, np.float32)})


def test_two_inputs_stay() -> None:
    leaves(
        "main (float[n] x) => (float[m] z) { z = Concat <axis = 0> (x, x) }", remove_single_inputs
    )


def test_an_output_of_an_input_stays() -> None:
    leaves(
        "main (float[n] x) => (float[n] z) { z = Sum (x) }",
        remove_single_inputs,
        "it names a graph output",
    )
