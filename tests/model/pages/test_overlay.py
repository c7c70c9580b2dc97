"""Node data for Model Explorer."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from coreai_onnx.model.pages.graph_page import Column
from coreai_onnx.model.pages.overlay import overlay, write_overlay
from tests.support.small_models import parse


def model():
    return parse("""<ir_version: 10, opset_import: ["": 21]>
    main (float[4] x) => (float[4] y) { [a] h = Neg(x)  [b] k = Abs(h)  y = Exp(k) }""")


def test_values_by_graph_and_name(tmp_path: Path) -> None:
    column = Column(
        "kernels ms", {(0, "a"): 1.5, (1, "b/one"): 2.0, (1, "b/two"): 3.0, (2, ""): 1.0}
    )
    data = json.loads(write_overlay(tmp_path / "d.json", model(), column).read_text())
    assert list(data) == ["main"]
    assert data["main"]["name"] == "kernels ms"
    assert data["main"]["results"] == {"a": {"value": 1.5}, "b": {"value": 5.0}}
    stops = [stop["stop"] for stop in data["main"]["gradient"]]
    assert stops == [0, 1]


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_only_numbers_that_json_has(value: float) -> None:
    column = Column("error", {(0, "a"): value, (1, "b/x"): 0.5, (1, "b/y"): 0.25}, "error")
    assert overlay(model(), column)["main"]["results"] == {"b": {"value": 0.5}}
