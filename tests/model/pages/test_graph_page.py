"""Tests of a model as an HTML page, and as node data for Model Explorer."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import onnx_ir as ir
import pytest
from onnx import TensorProto, helper

from coreai_onnx.model.pages.graph_page import (
    Column,
    graph_page,
    overlay,
    write_overlay,
    write_page,
)
from coreai_onnx.model.provenance.places import as_read
from tests.model.pages.browser import opened
from tests.support.small_models import parse

ATTACK = "</script><script>window.broken=1</script><img src=x onerror=window.broken=1>"


def chain(count: int, per_layer: int = 4) -> ir.Model:
    """Sums in layers, each of the two values before."""
    nodes = [
        helper.make_node("Add", [f"v{max(i - 1, 0)}", f"v{max(i - 2, 0)}"], [f"v{i + 1}"], f"n{i}")
        for i in range(count)
    ]
    ends = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, [4]) for name in ("v0", f"v{count}")
    ]
    graph = helper.make_graph(nodes, "chain", ends[:1], ends[1:])
    model = ir.from_proto(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)]))
    lines = {}
    for i, node in enumerate(model.graph):
        node.metadata_props["coreai.scope"] = f"model.layers.{i // per_layer}.mlp"
        node.metadata_props["coreai.class"] = "MLP"
        node.metadata_props["coreai.source"] = f"net.py:{i % per_layer + 1}"
        lines[str(i % per_layer + 1)] = f"x = x + y  # {i % per_layer}"
    model.metadata_props["coreai.code"] = json.dumps({"net.py": lines})
    return model


def times(model: ir.Model) -> Column:
    """The n-th node takes n milliseconds."""
    keys = [place.key for place in as_read(model).places]
    return Column("kernels ms", {key: float(i) for i, key in enumerate(keys)}, "ms")


def data_of(page: str) -> dict[str, Any]:
    (text,) = re.findall(
        r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL
    )
    found: dict[str, Any] = json.loads(text)
    return found


def test_the_data_of_a_page() -> None:
    model = parse("""<ir_version: 10, opset_import: ["": 21]>
    g (float[n, 4] x) => (float[n, 4] y) { [neg] a = Neg(x)  [sum] y = Add(a, x) }""")
    neg, both = model.graph
    neg.metadata_props["coreai.scope"] = both.metadata_props["coreai.scope"] = "mlp"
    (first, second) = (place.key for place in as_read(model).places)
    columns = [
        Column("error", {first: math.nan, second: math.inf}, "error"),
        Column("ms", {second: 2.5}, "ms"),
    ]
    data = data_of(
        graph_page(model, columns, title="t", facts=["a fact"], wrong={second: "1 of 4 wrong"})
    )
    assert [node["name"] for node in data["nodes"]] == ["neg", "sum"]
    assert data["nodes"][1]["reads"] == [0]
    assert data["nodes"][1]["gives"] == [["y", "float32[n, 4]"]]
    assert [node.get("wrong") for node in data["nodes"]] == [None, "1 of 4 wrong"]
    assert data["values"] == [["nan", "inf"], [None, 2.5]]
    assert data["modules"] == [["mlp", ""]]
    assert (data["title"], data["facts"]) == ("t", ["a fact"])


def test_nothing_in_a_model_is_markup() -> None:
    model = chain(2)
    model.graph[0].name = ATTACK
    model.graph[0].metadata_props["coreai.scope"] = ATTACK
    model.metadata_props["coreai.code"] = json.dumps({"net.py": {"1": ATTACK + "\ud800"}})
    page = graph_page(model, [times(model)], title=ATTACK)
    assert ATTACK not in page
    assert "<img" not in page
    assert page.count("</script>") == 2
    page.encode()


def test_a_page_is_whole_and_the_same_each_time() -> None:
    model = chain(5)
    page = graph_page(model, [times(model)], title="t")
    assert page == graph_page(model, [times(model)], title="t")
    assert not re.search(r"(src|href)=|url\(|@import|https?://(?!www\.w3\.org/2000/svg)", page)
    assert "default-src 'none'" in page


def test_long_texts_are_shortened() -> None:
    model = chain(2)
    model.graph[0].name = "n" * 10_000
    assert len(data_of(graph_page(model, [], title="t"))["nodes"][0]["name"]) == 500


@pytest.mark.slow
def test_a_reader_finds_the_slow_node(tmp_path: Path) -> None:
    model = chain(12)
    with opened(write_page(tmp_path / "p.html", model, [times(model)], title="Times")) as page:
        assert page.inner_text("h1") == "Times"
        assert "66.0" in page.inner_text("nav .row >> nth=0"), "the sum of 0 … 11 ms"
        page.click("button:text-is('Table')")
        rows = [row.split("\n") for row in page.locator(".table .row").all_inner_texts()]
        assert [row[:2] for row in rows[:2]] == [["n11", "11.0"], ["n10", "10.0"]]
        page.click(".head .cell:has-text('node')")
        assert page.locator(".table .row").first.inner_text().startswith("n0")
        page.click("button:text-is('operators')")
        assert page.locator(".table .row").first.inner_text().split() == ["Add", "66.0", "12"]
        page.click("button:text-is('Source')")
        assert "x = x + y  # 3" in page.locator(".source .row").last.inner_text()
        page.locator(".source .row").last.click()
        assert page.inner_text(".found") == "3 of 12 nodes", "those of one line"


@pytest.mark.slow
def test_modules_open_in_the_graph_and_nodes_are_described(tmp_path: Path) -> None:
    model = chain(200, per_layer=10)
    with opened(write_page(tmp_path / "p.html", model, [times(model)], title="t")) as page:
        page.click("button:text-is('collapse')")
        assert page.locator("svg .box").count() == 1
        page.locator("svg .box >> nth=0").click()
        page.locator("svg .box[data-name='model.layers']").click()
        boxes = page.locator("svg .box[data-name^='model.layers.']")
        assert boxes.count() >= 5
        page.keyboard.press("/")
        page.keyboard.type("n155")
        page.wait_for_selector(".found:text-is('1 of 200 nodes')")
        page.click("nav .row:has-text('n155')")
        described = page.inner_text("aside")
        assert "model.layers.15.mlp (MLP)" in described
        assert "v156: float32[4]" in described or "v156" in described
        assert page.locator("svg .box.selected").get_attribute("data-name") == "n155"
        page.click("aside a:text-is('n153')")
        assert page.inner_text("aside h3") == "n153"


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_light_and_dark(tmp_path: Path, scheme: str) -> None:
    model = chain(12)
    path = write_page(tmp_path / "p.html", model, [times(model)], title="t")
    with opened(path, scheme) as page:
        look = "e => getComputedStyle(e).backgroundColor.match(/[\\d.]+/g).slice(0, 3).map(Number)"
        before = page.eval_on_selector("header", look)
        assert (min(before) > 200) if scheme == "light" else (max(before) < 60)
        ink = page.eval_on_selector("h1", look.replace("backgroundColor", "color"))
        assert abs(sum(ink) - sum(before)) > 450, "text and background differ"
        page.click("button[aria-label='Light or dark']")
        after = page.eval_on_selector("header", look)
        assert (max(after) < 60) if scheme == "light" else (min(after) > 200)


@pytest.mark.slow
def test_wrong_nodes_are_shown_first(tmp_path: Path) -> None:
    model = chain(40)
    keys = [place.key for place in as_read(model).places]
    errors = Column("error", {keys[7]: 0.5, keys[8]: 1e-9, keys[30]: math.nan}, "error")
    wrong = {keys[7]: "16 of 16 wrong", keys[30]: "NaN"}
    path = write_page(tmp_path / "p.html", model, [errors], title="Blame", wrong=wrong)
    with opened(path) as page:
        assert "2 wrong" in page.inner_text("header")
        assert page.inner_text("aside h3") == "n7"
        assert "16 of 16 wrong" in page.inner_text("aside")
        assert page.locator("svg .box.bad").count() >= 1
        page.click("button:text-is('next wrong node')")
        assert page.inner_text("aside h3") == "n30"
        page.click("button:text-is('Table')")
        assert page.locator(".table .row").first.inner_text().split()[:2] == ["●n30", "NaN"]


@pytest.mark.slow
def test_hostile_names_stay_texts(tmp_path: Path) -> None:
    model = chain(3)
    model.graph[1].name = ATTACK
    model.graph[1].metadata_props.update({"coreai.scope": "__proto__.constructor." + ATTACK})
    model.metadata_props["coreai.code"] = json.dumps({"net.py": {"2": ATTACK}})
    path = write_page(tmp_path / "p.html", model, [times(model)], title=ATTACK)
    with opened(path) as page:
        page.evaluate("select(NODES[1])")
        for tab in ("Table", "Source", "Graph"):
            page.click(f"button:text-is('{tab}')")
        assert page.inner_text("aside h3") == ATTACK
        assert page.evaluate("window.broken") is None
        assert page.locator("img").count() == 0


@pytest.mark.slow
@pytest.mark.parametrize("per_layer", [20, 10_000])
def test_ten_thousand_nodes(tmp_path: Path, per_layer: int) -> None:
    model = chain(10_000, per_layer)
    with opened(write_page(tmp_path / "p.html", model, [times(model)], title="t")) as page:
        for step in ("select(NODES[5000])", "open('table')", "open('source')", "search('n777')"):
            page.evaluate(step)
            assert page.evaluate("document.querySelectorAll('*').length") < 3000
        assert page.inner_text(".found") == "11 of 10000 nodes"


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
