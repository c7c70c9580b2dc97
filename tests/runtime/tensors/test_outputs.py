"""The object that a run returns."""

from __future__ import annotations

import numpy as np
import pytest

from coreai_onnx.runtime.tensors.outputs import Outputs

A, B = np.zeros((2, 3), np.float32), np.ones(4, np.int64)


@pytest.fixture
def outputs() -> Outputs:
    return Outputs({"logits": A, "ids": B}, lambda: {"cache": B})


def test_by_name_and_by_position(outputs: Outputs) -> None:
    assert outputs["ids"] is B
    assert outputs[0] is A
    assert outputs[-1] is B
    assert outputs[:1] == (A,)
    assert len(outputs) == 2


def test_unpacked_in_order(outputs: Outputs) -> None:
    logits, ids = outputs
    assert logits is A
    assert ids is B


def test_as_a_dictionary(outputs: Outputs) -> None:
    assert list(dict(outputs)) == ["logits", "ids"]
    assert dict(outputs)["ids"] is B
    assert outputs.keys() == outputs.names == ("logits", "ids")
    assert outputs.values() == (A, B)
    assert outputs.items() == (("logits", A), ("ids", B))


def test_states_are_read_when_asked_for(outputs: Outputs) -> None:
    assert outputs.states == {"cache": B}


def test_a_wrong_name_says_which_there_are(outputs: Outputs) -> None:
    with pytest.raises(KeyError, match=r"no output 'logit'; there are logits, ids"):
        outputs["logit"]
    with pytest.raises(IndexError):
        outputs[2]


def test_repr_shows_types(outputs: Outputs) -> None:
    assert repr(outputs) == "Outputs(logits: float32[2, 3], ids: int64[4])"
