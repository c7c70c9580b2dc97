"""Totals by library, and what has to be measured again."""

from __future__ import annotations

from typing import Any

from tools.foreign.records import Job, Records
from tools.operators.measuring import CRASH, MISMATCH, NOT_EXPORTED, PASS, SKIPPED


def _call(status: str, **resized: str) -> dict[str, Any]:
    return {"status": status, "detail": f"why {status}", "resized": resized}


RECORDS = Records(
    {
        ("a/good", "float32"): [_call(PASS, **{"second size": PASS}), _call(MISMATCH)],
        ("a/good", "float16"): [_call(CRASH)],
        ("a/odd", "float32"): [_call(NOT_EXPORTED), _call(NOT_EXPORTED)],
        ("b/none", "float32"): [_call(SKIPPED)],
    },
    {"a/good": "a", "a/odd": "a", "b/none": "b"},
)


def test_a_crash_is_a_failure_and_what_torch_does_not_take_is_none() -> None:
    assert RECORDS.failures() == [(("a/good", "float16"), CRASH, "why crash")]
    assert RECORDS.without(SKIPPED) == [("b/none", "float32", "why skipped")]
    assert RECORDS.without(NOT_EXPORTED) == [("a/odd", "float32", "why not exported")]
    assert RECORDS.summary()["not exported by torch"] == [["a/odd", "why not exported"]]


def test_totals_are_by_library_and_dtype() -> None:
    assert RECORDS.summary()["libraries"] == {
        "a": {
            "float32": {PASS: 1, NOT_EXPORTED: 1},
            "float16": {CRASH: 1},
            "torch.onnx": {MISMATCH: 1, NOT_EXPORTED: 1},
        },
        "b": {"float32": {SKIPPED: 1}, "torch.onnx": {SKIPPED: 1}},
    }
    assert RECORDS.summary()["second size"] == {PASS: 1}
    assert "1 crash" in RECORDS.table()


def test_a_run_without_the_other_exporter_is_open_where_it_is_asked_for() -> None:
    alone = Records({("a/good", "float32"): [_call(PASS)]}, {"a/good": "a"})
    assert alone.holds(Job("a/good", "float32"))
    assert not alone.holds(Job("a/good", "float32", beside=True))
    assert RECORDS.beside() == 2
    assert alone.beside() == 0
    for case in ("a/odd", "b/none"):  # there is nothing that the other exporter could convert
        only_ours = Records({(case, "float32"): RECORDS.found[case, "float32"][:1]}, {case: "a"})
        assert only_ours.holds(Job(case, "float32", beside=True))
    assert not RECORDS.holds(Job("b/none", "bfloat16"))


def test_what_is_not_exported_in_float32_is_not_repeated_in_half_precision() -> None:
    found = RECORDS.not_repeated(Job("a/odd", "bfloat16"))
    assert found is not None
    assert found[0]["status"] == NOT_EXPORTED
    assert RECORDS.not_repeated(Job("a/odd", "float32")) is None
    assert RECORDS.not_repeated(Job("a/good", "bfloat16")) is None
    assert RECORDS.not_repeated(Job("b/none", "bfloat16")) is None
    assert RECORDS.not_repeated(Job("c/new", "bfloat16")) is None
