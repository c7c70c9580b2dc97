from __future__ import annotations

from coreai_onnx.passes.engine.report import PassMiss, PassReport
from coreai_onnx.passes.engine.why import NearMiss

REPORT = PassReport(
    counts={"remove_identities": 3, "fold_shapes": 0, "fold_constants": 12},
    near_misses=(PassMiss("fold_shapes", "main", NearMiss("not known", "Shape", "s", 4)),),
    rounds=2,
    nodes_before=40,
    nodes_after=25,
)


def test_total() -> None:
    assert REPORT.total == 15
    assert PassReport().total == 0


def test_table_shows_what_fired() -> None:
    assert str(REPORT) == REPORT.table()
    assert REPORT.table().splitlines() == [
        "nodes: 40 → 25 in 2 rounds",
        "  remove_identities       3",
        "  fold_constants         12",
    ]


def test_near_misses_show_reason_and_place() -> None:
    assert REPORT.near_miss_table() == "fold_shapes  4x Shape  not known  main: s"
    assert PassReport().near_miss_table() == ""
