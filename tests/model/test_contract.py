"""The contract of a decoder: reading, and which inputs break it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from coreai_onnx.model.contract import Contract, read_contract
from coreai_onnx.model.metadata import CONTRACT


def call(batch: int, count: int, past: int, **change: Any) -> dict[str, Any]:
    """The inputs of a call without padding, and changes."""
    places = np.arange(past, past + count)
    mask = np.ones((batch, past + count), np.int64)
    ids = np.ones((batch, count), np.int64)
    usual = {"input_ids": ids, "attention_mask": mask, "position_ids": np.tile(places, (batch, 1))}
    return usual | change


@pytest.mark.parametrize("sizes", [(1, 5, 0), (3, 5, 0), (1, 1, 5), (3, 1, 5), (1, 4, 4)])
@pytest.mark.parametrize("without", ["", "position_ids", "attention_mask"])
def test_calls_without_padding(sizes: tuple[int, int, int], without: str) -> None:
    given = {name: x for name, x in call(*sizes).items() if name != without}
    assert Contract("none", "growing", 8).fault(given) is None


@pytest.mark.parametrize(
    ("given", "name", "what"),
    [
        (call(2, 3, 0, attention_mask=np.array([[0, 1, 1], [1, 1, 1]])), "attention_mask", "zeros"),
        (call(2, 3, 0, attention_mask=np.array([[1, 1, 0], [1, 1, 1]])), "attention_mask", "zeros"),
        (call(1, 3, 0, position_ids=np.array([[0, 1, 3]])), "position_ids", "must be 0 to 2"),
        (call(1, 1, 4, position_ids=np.array([[3]])), "position_ids", "must be 4 to 4"),
        (call(2, 2, 0, position_ids=np.array([[0, 1], [1, 2]])), "position_ids", "must be 0 to 1"),
        (call(1, 9, 0), "attention_mask", "the model has 8 positions"),
        (call(1, 3, 0, attention_mask=np.ones((1, 2))), "attention_mask", "2 columns for 3 tokens"),
        (call(2, 3, 1), "input_ids", "3 tokens in each of 2 rows, after 1 cached ones"),
    ],
)
def test_calls_that_break_it(given: dict[str, Any], name: str, what: str) -> None:
    fault = Contract("none", "static", 8).fault(given)
    assert fault is not None
    assert fault[0] == name
    assert what in fault[1]
    assert fault[2]
    # A file for padded batches relies on none of this.
    assert Contract("left", "static", 8).fault(given) is None


def test_the_metadata_of_a_contract() -> None:
    metadata: dict[str, str] = {}
    assert read_contract(metadata) is None
    for contract in (Contract("none", "static", 8), Contract("left", "growing")):
        contract.write(metadata)
        assert read_contract(metadata) == contract


@pytest.mark.parametrize(
    "text",
    [
        "[]",
        "{}",
        '{"padding": "right", "cache": "growing"}',
        '{"padding": "none", "cache": "ring"}',
        '{"padding": "none", "cache": "static", "max_positions": true}',
        '{"padding": "none", "cache": "static", "max_positions": 0}',
        '{"padding": ["none"], "cache": "static"}',
        "[" * 100_000,
    ],
)
def test_metadata_of_another_form(text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - the reader names the entry
        read_contract({CONTRACT: text})
