"""Reports list the worst layers first, and what keeps its dtype."""

from __future__ import annotations

from dataclasses import replace

from coreai_onnx.quantization.evaluation import MetricChange, OutputChange
from coreai_onnx.quantization.report import (
    WORST,
    KeptWeight,
    QuantizationReport,
    QuantizedLayer,
)
from coreai_onnx.quantization.weights.scheme import Scheme


def layer(path: str, sqnr: float, output: float | None = None) -> QuantizedLayer:
    return QuantizedLayer(path, f"{path}.weight", (8, 32), Scheme(), 1024, 144, sqnr, output)


def test_the_worst_layers_come_first() -> None:
    layers = tuple(layer(f"layers.{i}", 30 - i) for i in range(WORST + 2))
    kept = (KeptWeight("lm_head", (8, 32), 1024, "skipped by a pattern"),)
    report = QuantizationReport(layers, kept, 4096, 1024)
    assert report.worst[0].path == f"layers.{WORST + 1}"
    text = str(report)
    assert text.startswith("quantized 10 weights: 4.0 KiB → 1.0 KiB (4.0 times smaller)")
    assert f"(the worst {WORST})" in text
    assert "layers.0 " not in text
    assert "layers.0 " in report.table()
    assert "skipped by a pattern" in text


def test_the_error_of_the_product_counts_if_it_is_known() -> None:
    report = QuantizationReport((layer("a", 10, 30.04), layer("b", 20)), (), 1, 1)
    assert [one.path for one in report.worst] == ["b", "a"]
    assert "a      [8, 32]  4 bits, groups of 32, hqq  1.0 KiB  144 B  10.0     30.0" in str(report)


def test_changes_of_outputs_and_metrics() -> None:
    output = OutputChange("logits", 20.04, 0.99512345, 0.25, 0.875)
    metric = MetricChange("perplexity", 8.0, 9.0)
    text = str(QuantizationReport((), (), 1, 1, (output,), (metric,)))
    assert "logits  20.0     0.995123  0.25            87.5%" in text
    assert "perplexity  8       9      +12.50 %" in text


def test_groups_of_other_sizes_are_listed() -> None:
    layers = (layer("a", 10), layer("b", 10), replace(layer("c", 10), scheme=Scheme(group_size=20)))
    report = QuantizationReport(layers, (), 1, 1)
    assert [one.path for one in report.other_groups] == ["c"]
    assert "groups of other sizes: c (20)" in str(report)
    assert "other sizes" not in str(QuantizationReport(layers[:2], (), 1, 1))
