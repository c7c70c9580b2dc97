"""The tables of docs/models_on_providers.md count what a reader takes them to count."""

from __future__ import annotations

import importlib.util
import json

import pytest


@pytest.fixture(name="generator")
def _generator(repo):
    path = repo / "tools" / "generate_providers_doc.py"
    spec = importlib.util.spec_from_file_location("generate_providers_doc", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def call(others):
    return {"device": 9, "copies": 3, "declared": 2, "others": others}


NATIVE = {"target": "webgpu", "place": "native", "status": "pass"}
SUM, LESS = "Sum-13(float): no kernel", "Less-13(int64): no kernel"
ROWS = [
    {**NATIVE, "kind": "model", "name": "bert", "error": 2e-6, "calls": {"run": call({SUM: 4})}},
    {
        **NATIVE,
        "kind": "folder",
        "name": "llama",
        "calls": {"prefill": call({SUM: 1, LESS: 1}), "decode": call({})},
    },
    {
        **NATIVE,
        "kind": "folder",
        "name": "mpt",
        "place": "browser",
        "status": "run failed",
        "detail": "no | such type",
    },
    {**NATIVE, "kind": "folder", "name": "mpt", "status": "mismatch", "detail": "[1], [2]"},
    {**NATIVE, "kind": "folder", "name": "rwkv", "calls": {"decode": call({})}},
    {
        **NATIVE,
        "kind": "folder",
        "name": "rwkv",
        "place": "browser",
        "note": "knows no model of this type",
    },
]
RESULTS = {"cases": 5, "rows": ROWS}
TIMES = {name: {"min": 2.0, "median": 3.0} for name in ("kernels", "body")}
OPENVINO = {
    "machine": "A CPU.",
    "command": "$ run",
    "rows": [{"model": "BERT", "error": 2e-6, **TIMES, "openvino": {"min": 4.0, "median": 4.0}}],
}


def test_nodes_are_counted_per_call_and_failures_are_listed(generator) -> None:
    text = generator.rendered(RESULTS, OPENVINO)
    assert (
        "4 of 5 models were measured so far. 3 of 4 models pass natively, 1 of 2 in Chromium."
        in text
    )
    assert "In 2 of 4 calls, no other node is on the CPU." in text
    assert "| bert | 9 | 2 | 4 | 3 | 2e-06 | – |" in text
    assert "| llama | prefill | 9 | 2 | 2 | 3 | equal | – |" in text
    assert "|  | decode | 9 | 2 | 0 | 3 |  |  |" in text
    assert "| mpt | – | – | – | – | – | mismatch | run failed |" in text
    assert "| rwkv | decode | 9 | 2 | 0 | 3 | equal | pass (web) |" in text
    assert "| rwkv | knows no model of this type |" in text
    assert r"| mpt | browser | run failed | no \| such type |" in text


def test_reasons_are_counted_over_the_models(generator) -> None:
    text = generator.rendered(RESULTS, OPENVINO)
    assert "| Sum-13(float) | no kernel | 5 | 2 |\n| Less-13(int64) | no kernel | 1 | 1 |" in text


def test_files_for_cuda_were_recorded_with_a_scalar_on_the_cpu(repo) -> None:
    rows = json.loads((repo / "tools/providers/results.json").read_text(encoding="utf-8"))["rows"]
    on_cuda = [row for row in rows if row["target"] == "cuda"]
    assert {row["kind"] for row in on_cuda if row["status"] != "pass"} == {"float16 folder"}
    others = {what for row in on_cuda for call in row["calls"].values() for what in call["others"]}
    assert others == {"Equal-13(float): beside values on the CPU"}


def test_files_for_webgpu_were_recorded_without_other_nodes_on_the_cpu(repo) -> None:
    rows = json.loads((repo / "tools/providers/results.json").read_text(encoding="utf-8"))["rows"]
    native = [row for row in rows if (row["target"], row["place"]) == ("webgpu", "native")]
    assert {row["status"] for row in native} == {"pass"}
    calls = [(row["name"], call["others"]) for row in native for call in row["calls"].values()]
    assert [(name, others) for name, others in calls if others] == []


def test_ratios_are_our_time_divided_by_that_of_openvino(generator) -> None:
    text = generator.rendered(RESULTS, OPENVINO)
    assert "| BERT | 2 ms | 2 ms | 4 ms | 0.50 | 0.75 | 2e-06 |" in text
