"""The table of releases against docs/runtimes.md, whose columns are the releases that were run."""

from __future__ import annotations

import re

from coreai_onnx.targets import kernel_dtypes, releases
from coreai_onnx.targets.releases import (
    CONTRIB_SLOW_SINCE,
    DEVICES,
    NEWEST_OPSET,
    OLDEST,
    OLDEST_TESTED,
    SINCE,
    newest_opset,
    release_of,
    text_of,
)
from tests.rules.tree import text

DOCUMENT = text("docs/runtimes.md")
TABLES = re.findall(r"^\| architecture \| (.+) \|$", DOCUMENT, re.MULTILINE)
COLUMNS = TABLES[0].split(" | ")


def test_every_table_of_the_document_is_about_the_same_releases() -> None:
    assert set(TABLES) == {TABLES[0]}
    assert len(COLUMNS) > 5


def test_every_release_of_the_table_was_run() -> None:
    run = {release_of(column) for column in COLUMNS}
    needed = {*SINCE.values(), *CONTRIB_SLOW_SINCE.values(), *NEWEST_OPSET, DEVICES}
    assert {one for one in needed if one >= OLDEST_TESTED} <= run
    assert min(run) == OLDEST_TESTED > OLDEST


def test_the_dtypes_are_those_of_the_newest_release() -> None:
    assert f"from onnxruntime {COLUMNS[-1]};" in (kernel_dtypes.__doc__ or "")


def test_the_opsets_of_the_runs() -> None:
    sentence = r"Releases before (\S+) run files of opset 21, the others files of opset 23"
    (first,) = re.findall(sentence, DOCUMENT)
    for column in COLUMNS:
        release = release_of(column)
        assert newest_opset(column) >= (21 if release < release_of(first) else 23)
    assert newest_opset(first) == 23


def test_the_table_is_ordered_and_texts_are_read_back() -> None:
    assert list(NEWEST_OPSET) == sorted(NEWEST_OPSET)
    assert list(NEWEST_OPSET.values()) == sorted(NEWEST_OPSET.values())
    for release in NEWEST_OPSET:
        assert release_of(text_of(release)) == release
    assert releases.release_of(None) is None
