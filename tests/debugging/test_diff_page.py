"""The page holds every change, and nothing of a model can break out of it."""

from __future__ import annotations

from coreai_onnx.debugging.diff_page import page
from coreai_onnx.debugging.model_diff import Change, ModelDiff


def test_every_change_is_on_the_page() -> None:
    changes = tuple(Change("nodes", "changed", f"node {i}", "1", "2") for i in range(50))
    text = page(ModelDiff(changes), "a.onnx", "b.onnx")
    assert 'Changes: 50 in <a href="#nodes">nodes</a>.' in text
    assert '<h2 id="nodes">nodes (50)</h2>' in text
    assert all(f"<td>node {i}</td>" in text for i in range(50))
    assert text.count('<tr class="changed">') == 50


def test_names_are_text_not_markup() -> None:
    change = Change("weights", "added", "<script>alert(1)</script>", "", "&")
    text = page(ModelDiff((change,)), "<b>", "c")
    assert "<script>" not in text
    assert "&lt;script&gt;" in text
    assert "<title>&lt;b&gt; → c</title>" in text


def test_same_models() -> None:
    assert "The models are the same." in page(ModelDiff(()), "a", "b")
