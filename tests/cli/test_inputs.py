"""Inputs on the command line, beside those of ``tests/cli/test_run_file.py``."""

from __future__ import annotations

import argparse

import pytest

from coreai_onnx.cli.inputs import declare_inputs, inputs_of
from coreai_onnx.errors import CommandError
from coreai_onnx.runtime.session import Session
from tests.small_models import add_model


def options(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    declare_inputs(parser)
    return parser.parse_args(words)


def test_inputs_that_are_not_given_are_random() -> None:
    session = Session(add_model(), kernels=False)
    found = inputs_of(session, options("--dim", "seq=7", "--input", "mask=float32[3,7]"))
    assert {name: array.shape for name, array in found.items()} == {"mask": (3, 7), "ids": (3, 7)}
    assert found["ids"].dtype == "int64"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--dim", "sea=7"], "--dim sea: the inputs have no such dim; there are batch, seq"),
        (["--dim", "seq=x"], "the size must be a number"),
        (["--input", "id=random"], "--input id: the model has no such input"),
    ],
)
def test_wrong_words(words: list[str], message: str) -> None:
    with pytest.raises(CommandError, match=message):
        inputs_of(Session(add_model(), kernels=False), options(*words))
