"""The tables of docs/foreign_models.md count what a reader takes them to count."""

from __future__ import annotations

import importlib.util

import pytest


@pytest.fixture(name="generator")
def _generator(repo):
    path = repo / "tools" / "generate_foreign_doc.py"
    spec = importlib.util.spec_from_file_location("generate_foreign_doc", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


FOREIGN = {
    "runs": 6,
    "measured": 5,
    "libraries": {
        "timm": {
            "float32": {"pass": 3, "mismatch": 1, "not exported": 1},
            "float16": {"pass": 2, "refused": 1},
            "torch.onnx": {"pass": 2, "skipped": 3},
        }
    },
    "second size": {"pass": 4, "rejected by torch": 1},
    "left": [
        {"case": "timm/a", "dtype": d, "status": "mismatch", "detail": "1 | 2"}
        for d in ("float32", "float16")
    ],
    "beside": 2,
    "not exported by torch": [["timm/c", "KeyError: 1"]],
    "without a result in torch": [
        ["timm/b", "float16", "ValueError: random"],
        ["timm/b", "bfloat16", "ValueError: random"],
    ],
}
BACKEND = {
    "models": 1600,
    "measured": 1500,
    "kinds": {"node": 1500},
    "targets": {"portable": {"pass": 1000, "refused": 400, "run failed": 100}},
    "not run": {},
    "left": [
        {"model": f"node/test_{i}", "target": "portable", "status": "refused", "detail": "no"}
        for i in range(6)
    ],
}


def test_what_torch_does_not_export_is_not_counted(generator) -> None:
    text = generator.rendered(FOREIGN, BACKEND)
    assert "| 5 | 3 of 4, 1 wrong | 2 of 3 | – | 2 of 2 |" in text
    assert "5 of 6 runs were measured so far." in text
    assert "| timm/c | KeyError: 1 |" in text
    assert "| timm/b | float16, bfloat16 | ValueError: random |" in text
    assert "`torch.onnx.export` was measured on 2 of 5 models." in text


def test_failures_with_one_reason_are_one_row(generator) -> None:
    text = generator.rendered(FOREIGN, BACKEND)
    assert r"| timm/a | float32, float16 | mismatch | 1 \| 2 |" in text
    assert "| portable | 1,000 | 0 | 400 | 0 | 100 |" in text
    assert "| refused | portable | no | 6: 0, 1, 2, 3 … |" in text


def test_paths_of_the_machine_are_left_out(generator) -> None:
    assert generator._cell('/work/env/lib/x.py: "/tmp/a/b" is no file') == 'x.py: "b" is no file'
    for text in (
        "KeyError: ((s0/16)//2)",
        "see https://example.org/a/b",
        "torch/_ops.py:3 in call",
    ):
        assert generator._cell(text) == text
