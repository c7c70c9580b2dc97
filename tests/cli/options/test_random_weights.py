"""Factories that draw their weights."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from coreai_onnx.cli.options.random_weights import random_weights
from coreai_onnx.cli.options.subject import Subject, load_subject

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
