"""Counts, failures, and what has to be measured again."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("transformers.exporters.auto")

from tools.classes.listing import Job
from tools.classes.records import failures, holds, is_measured, summary
from tools.generate_classes_doc import rendered
from tools.operators.measuring import MISMATCH, NOT_EXPORTED, PASS, REFUSED, SKIPPED


def found(*statuses: str) -> list[dict[str, Any]]:
    return [{"status": s, "detail": f"why {s}", "resized": {}, "inputs": ["x"]} for s in statuses]


KNOWN = {
    ("BertModel",): found(PASS, SKIPPED, PASS),
    ("LlamaForCausalLM",): found(PASS, MISMATCH),
    ("T5Model",): found(REFUSED, SKIPPED),
    ("ViTModel",): found(NOT_EXPORTED),
}


def test_a_class_holds_when_everything_asked_for_was_found() -> None:
    job, beside = Job("a", "A"), Job("b", "B", beside=True)
    assert holds(found(PASS), job, 1)
    assert not holds(found(PASS), job, 2)
    assert holds(found(PASS, PASS), job, 3)
    assert not holds(found(PASS, PASS), beside, 3)
    assert holds(found(NOT_EXPORTED), beside, 3)
    assert not holds([], job, 1)


def test_a_class_that_was_not_built_is_repeated() -> None:
    assert is_measured(found(NOT_EXPORTED))
    assert not is_measured(found(SKIPPED))
    assert not is_measured([])


def test_a_reason_has_the_name_of_one_error() -> None:
    nested = [{**found(SKIPPED)[0], "detail": "ValueError: ValueError: TypeError: no"}]
    assert summary({("BertModel",): nested})["rows"][0]["results"] == [[SKIPPED, "TypeError: no"]]


def test_what_torch_does_not_take_is_no_failure() -> None:
    assert failures(KNOWN) == [
        ("LlamaForCausalLM", MISMATCH, f"generate: why {MISMATCH}"),
        ("T5Model", REFUSED, f"why {REFUSED}"),
    ]


def test_the_page_has_counts_reasons_and_a_row_per_class() -> None:
    page = rendered(summary(KNOWN))
    assert "| conversion | 2 | 0 | 1 | 1 | 0 |" in page
    assert "Of the 3 classes that `torch.export` takes, 2 pass, 66.7 %." in page
    assert "| why refused | T5Model |" in page
    assert "| LlamaForCausalLM | mismatch | why mismatch |" in page
    assert "| BertModel | x | pass (one size) | – | pass |" in page
