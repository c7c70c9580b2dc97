"""Tests of numbers, progress, and random weights as options."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from coreai_onnx.cli.options.numbers import SEED, integer, random_weights, stages_shown, tolerance
from coreai_onnx.cli.options.subject import Subject, load_subject
from coreai_onnx.messages import begin_stage


def test_numbers() -> None:
    assert [integer(0)("0"), integer(0)("12"), integer(-1, 3)("3"), SEED(str(2**32 - 1))] == [
        0,
        12,
        3,
        2**32 - 1,
    ]
    assert [tolerance("0"), tolerance("1e-3")] == [0.0, 1e-3]


@pytest.mark.parametrize(
    ("read", "text", "message"),
    [
        (integer(0), "1.5", "'1.5' is not an integer"),
        (integer(0), "-1", "-1 is not at least 0"),
        (integer(0, 65535), "65536", "65536 is not from 0 to 65535"),
        (tolerance, "small", "'small' is not a number"),
        (tolerance, "nan", "nan is not a finite number of at least 0"),
        (tolerance, "-0.1", "-0.1 is not a finite number of at least 0"),
    ],
)
def test_numbers_out_of_bounds(read: Callable[[str], float], text: str, message: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError) as caught:
        read(text)
    assert str(caught.value) == message


def test_stages_are_lines_on_a_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with stages_shown():
        begin_stage("export")
        begin_stage("lower")
    begin_stage("save")
    told = capsys.readouterr()
    assert re.fullmatch(r" +\d+\.\d s  export\n +\d+\.\d s  lower\n", told.err)
    assert told.out == ""


def test_without_a_terminal_nothing_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    with stages_shown():
        begin_stage("export")
    assert capsys.readouterr() == ("", "")


MODELS = """
import os, torch
from torch import nn
MADE = nn.Linear(3, 2)
CALLS = []

class Broken(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("nan", torch.tensor([float("nan")]))

def drawn(): return nn.Linear(3, 2)
def wild():
    torch.manual_seed(int.from_bytes(os.urandom(4), "big"))
    return nn.Linear(3, 2)
def settled():
    torch.manual_seed(7)
    return nn.Linear(3, 2)
def shared(): return MADE
def broken(): return Broken()
def once():
    CALLS.append(1)
    assert len(CALLS) < 2
    return nn.Linear(3, 2)
"""


@pytest.mark.parametrize(
    ("factory", "reason"),
    [
        ("drawn", "makes random weights, here those of --seed 5"),
        ("wild", "makes other weights in each call, whatever the seed"),
        ("settled", ""),
        ("shared", ""),
        ("MADE", ""),
        ("broken", ""),
        ("once", ""),
    ],
)
def test_what_is_said_of_a_factory(tmp_path: Path, factory: str, reason: str) -> None:
    path = tmp_path / f"drawing_{factory}.py"
    path.write_text(MODELS)
    where = f"{path}:{factory}"
    said = random_weights(where, load_subject(where, 5), 5)
    assert reason in said
    assert bool(said) == bool(reason)


def test_an_exported_program_has_its_weights() -> None:
    program = torch.export.export(torch.nn.Linear(3, 2), (torch.ones(1, 3),))
    assert random_weights("m.pt2", Subject(program.module(), program=program), 0) == ""
