"""The page holds every change, and nothing of a model can break out of it."""

from __future__ import annotations

from importlib.resources import files

from coreai_onnx.debugging.diff.model_diff import Change, ModelDiff
from coreai_onnx.debugging.diff.page import page
from coreai_onnx.model.pages.graph_page import graph_page
from tests.support.small_models import parse


def test_every_change_is_on_the_page() -> None:
    changes = tuple(Change("nodes", "changed", f"node {i}", "1", "2") for i in range(50))
    text = page(ModelDiff(changes), "a.onnx", "b.onnx")
    assert 'Changes: 50 in <a href="#nodes">nodes</a>.' in text
    assert '<h2 id="nodes">nodes (50)</h2>' in text
    assert all(f"<td>node {i}</td>" in text for i in range(50))
    assert text.count('<tr class="changed mono">') == 50


def test_names_are_text_not_markup() -> None:
    change = Change("weights", "added", "<script>alert(1)</script>", "", "&")
    text = page(ModelDiff((change,)), "<b>", "c")
    assert "<script>alert" not in text
    assert "&lt;script&gt;" in text
    assert "<title>&lt;b&gt; → c</title>" in text


def test_same_models() -> None:
    assert "The models are the same." in page(ModelDiff(()), "a", "b")


def test_the_page_has_the_style_of_all_pages() -> None:
    text = page(ModelDiff((Change("nodes", "added", "n\ud800", "", "2"),)), "a", "b")
    model = parse("""<ir_version: 10, opset_import: ["": 21]>
    g (float[n] x) => (float[n] y) { y = Abs(x) }""")
    shared = (files("coreai_onnx.model.pages") / "frame.css").read_text(encoding="utf-8")
    assert f"<style>{shared}" in graph_page(model, [], title="t")
    assert f"<style>{shared}" in text
    assert "script-src 'sha256-" in text
    text.encode()
