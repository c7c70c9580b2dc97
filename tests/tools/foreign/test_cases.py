"""The cases of the lane: many, with names of their own, and known without their libraries."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
import torch
from torch.export import Dim

from tests.models.zoo import ARCHITECTURES
from tools.foreign.case import FIRST, SECOND, Case, ids_and_mask, image
from tools.foreign.cases import BESIDE, CASES, IN_BFLOAT16, LIBRARY, named


def test_there_are_two_hundred_with_names_of_their_own() -> None:
    assert len(CASES) >= 200
    assert not [name for name, count in Counter(c.name for c in CASES).items() if count > 1]
    assert {c.library for c in CASES} == {
        "diffusers", "peft", "timm", "torch_geometric", "torchao", "torchvision", "transformers",
    }  # fmt: skip


@pytest.mark.parametrize(("sample", "step"), [(BESIDE, 3), (IN_BFLOAT16, 2)])
def test_a_sample_has_its_part_of_each_library(sample: frozenset[str], step: int) -> None:
    counts = Counter(LIBRARY.values())
    assert Counter(LIBRARY[name] for name in sample) == {
        x: -(-n // step) for x, n in counts.items()
    }


def test_the_families_of_transformers_are_not_those_of_the_zoo() -> None:
    known = {architecture.name.replace("_", "-") for architecture in ARCHITECTURES}
    mine = {
        c.name.partition("/")[2].replace("_", "-") for c in CASES if c.library == "transformers"
    }
    assert mine - known >= mine - {"hubert"}


def test_names_are_known_without_the_libraries(repo: Path) -> None:
    """The checks of the repository read the cases in an environment without them."""
    code = (
        "import sys, tools.foreign.cases as c;"
        "assert not {'timm', 'diffusers', 'torchvision', 'transformers'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], cwd=repo, check=True)


def test_dims_that_differ_between_the_sizes_are_dynamic() -> None:
    text = Case("text", "none", torch.nn.Identity, ids_and_mask)
    assert text.dynamic_shapes() == {
        "input_ids": {0: Dim.AUTO, 1: Dim.AUTO},
        "attention_mask": {0: Dim.AUTO, 1: Dim.AUTO},
    }
    fixed = Case("fixed", "none", torch.nn.Identity, image(side=32))
    assert fixed.dynamic_shapes() == {"x": {0: Dim.AUTO}}
    assert FIRST.batch != SECOND.batch


def test_a_module_is_the_same_each_time_and_no_norm_is_neutral() -> None:
    case = Case("norm", "none", lambda: torch.nn.BatchNorm2d(3), image())
    first, second = (case.module(torch.float32) for _ in range(2))
    for name, value in first.state_dict().items():
        assert torch.equal(value, second.state_dict()[name])
    assert first.weight.std() > 0
    assert first.running_var.std() > 0
    half = case.module(torch.float16)
    assert half.weight.dtype == torch.float16


def test_a_layer_of_torch_geometric_has_the_name_that_was_asked_for() -> None:
    assert named("torch_geometric/GCNConv").library == "torch_geometric"
