"""Inputs that several commands choose in the same way."""

from __future__ import annotations

import argparse

import pytest

from coreai_onnx.cli.options.inputs import chosen_inputs, declare_inputs, declare_threads
from coreai_onnx.errors import CommandError
from coreai_onnx.runtime.sessions.session import Session
from tests.support.small_models import add_model


def options(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    declare_inputs(parser)
    declare_threads(parser)
    return parser.parse_args(words)


def test_random_inputs_are_those_of_the_seed() -> None:
    session = Session(add_model(), kernels=False)
    first, again, other = (
        chosen_inputs(session, options("--dim", "batch=3", "--seed", seed)) for seed in "001"
    )
    assert {name: array.shape for name, array in first.items()} == {"ids": (3, 2), "mask": (3, 2)}
    assert (first["mask"] == again["mask"]).all()
    assert (first["mask"] != other["mask"]).any()


def test_unknown_names() -> None:
    session = Session(add_model(), kernels=False)
    with pytest.raises(CommandError, match="the inputs have no such dim"):
        chosen_inputs(session, options("--dim", "heads=3"))
    with pytest.raises(CommandError, match="the model has no such input"):
        chosen_inputs(session, options("--input", "x=random"))
    assert options("--threads", "3").threads == 3
