"""A sample of the faults that ``tools/sweep_faults.py`` injects."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from coreai_onnx.debugging.blaming.blame import blame
from tests.debugging.faults import Fault, faults
from tests.debugging.wrong_kernel import build_wrong_library
from tests.support.own_process import with_library
from tools import sweep_faults
from tools.sweep_faults import clean_runs, converted, kernel_outcomes, outcomes, sample_of, tables


@pytest.mark.parametrize(
    ("name", "target", "dtype"),
    [
        ("bert", "onnxruntime", torch.float32),
        ("llama", "contrib", torch.float16),
        ("vit", "portable", torch.float32),
        ("gpt2", "onnxruntime", torch.float16),
        ("resnet", "contrib", torch.float32),
    ],
)
def test_faults_are_found_with_one_line_each(name: str, target: str, dtype: torch.dtype) -> None:
    program = converted(name, target, dtype)
    blame(program, kernels=False).assert_clean()
    done = list(outcomes(program, dtype, 8))
    assert len(done) >= 4
    assert all(outcome.found and outcome.lines == 1 for outcome in done), done


def found_with_lines() -> list[tuple[bool, int]]:
    program = converted("llama", "onnxruntime", torch.float16)
    done = [one for op in ("rms_norm", "skip_rms_norm") for one in kernel_outcomes(program, op)]
    return [(one.found, one.lines) for one in done]


@pytest.mark.slow
def test_a_wrong_kernel_is_found_at_every_call(kernels: Path, tmp_path: Path) -> None:
    done = with_library(build_wrong_library(kernels, tmp_path), found_with_lines)
    assert done == [(True, 1)] * 5


def test_tables_count_faults_by_model_target_and_kind() -> None:
    faults_ = [
        {"kind": "axis", "found": True, "lines": 1},
        {"kind": "axis", "found": True, "lines": 2},
        {"kind": "alpha", "found": False, "lines": 0},
    ]
    line = {"model": "bert", "target": "contrib", "dtype": "float32", "false alarms": 1}
    by_model, by_target, total, by_kind = tables([line | {"faults": faults_}]).split("\n\n")
    assert by_model.splitlines()[-1].split() == ["bert", "3", "2", "1", "1"]
    assert by_target.splitlines()[-1].split() == ["contrib", "float32", "3", "2", "1", "1"]
    assert total.splitlines()[-1].split() == ["3", "2", "1", "1"]
    assert by_kind.splitlines()[2:] == [
        "alpha          1      0         0",
        "axis           2      2         1",
    ]


@pytest.mark.usefixtures("kernels")
def test_clean_runs_have_no_findings() -> None:
    line = clean_runs("bert", "kernels", "float16", 2)
    assert line["clean"] == [[], []]
    assert tables([line]).splitlines()[2].split() == ["bert", "0", "0", "0", "0"]


def test_a_sample_has_as_many_kinds_as_possible() -> None:
    every = [Fault(kind, i, lambda *_: None) for i, kind in enumerate("aaaaaaaabbc")]
    for seed in range(3):
        sample = [fault.kind for fault in sample_of(every, 5, seed)]
        assert sorted(sample[:3]) == ["a", "b", "c"]
        assert sorted(sample) == ["a", "a", "b", "b", "c"]


def test_there_are_ten_kinds_of_faults() -> None:
    models = [converted(name, "onnxruntime", torch.float32).model for name in ("bert", "llama")]
    assert len({fault.kind for model in models for fault in faults(model)}) >= 10


@pytest.mark.parametrize(
    ("name", "target", "kind", "op"),
    [
        ("bert", "kernels", "rounded input", "skip_layer_norm"),
        ("gpt2", "onnxruntime", "swapped outputs", "Split"),
        ("llama_cache", "kernels", "stale state", "kv_cache_update"),
    ],
)
def test_faults_that_were_missed_once_are_found(
    name: str, target: str, kind: str, op: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = converted(name, target, torch.float32)
    nodes = list(program.model.graph)
    chosen = [
        fault
        for fault in faults(program.model)
        if fault.kind == kind and nodes[fault.node].op_type == op
    ]
    assert chosen
    monkeypatch.setattr(sweep_faults, "faults", lambda _: chosen)
    monkeypatch.setattr(sweep_faults, "EFFECTIVE", {torch.float32: 1e-6})
    done = list(outcomes(program, torch.float32, len(chosen)))
    assert len(done) == len(chosen)
    assert all(outcome.found and outcome.lines == 1 for outcome in done), done
    assert {outcome.node.split()[0] for outcome in done} == {op}
