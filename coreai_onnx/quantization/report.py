"""The report of a quantization: sizes and rounding errors by layer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import onnx_ir as ir

from coreai_onnx.messages import render, size_text
from coreai_onnx.quantization.evaluation import MetricChange, OutputChange
from coreai_onnx.quantization.weights.scheme import Scheme

WORST = 8
"""The number of layers that the text of a report lists."""


@dataclass(frozen=True)
class QuantizedLayer:
    """A weight that was quantized.

    Attributes:
        path: Module path.
        weight: Name of the initializer before.
        shape: Outputs and inputs, ``(N, K)``; ``(experts, N, K)`` for experts.
        scheme: How it was quantized.
        bytes_before: Its size before.
        bytes_after: Its size with scales and zero points.
        sqnr: Ratio of the weight to its rounding error in decibels.
        output_sqnr: Ratio of the product to its error on the calibration data, in decibels; None
            without data.
    """

    path: str
    weight: str
    shape: tuple[int, ...]
    scheme: Scheme
    bytes_before: int
    bytes_after: int
    sqnr: float
    output_sqnr: float | None = None

    @property
    def quality(self) -> float:
        """The ratio that layers are compared by: that of the product if it is known."""
        # Methods with calibration data trade the error of the weight for that of the product.
        return self.sqnr if self.output_sqnr is None else self.output_sqnr


@dataclass(frozen=True)
class KeptWeight:
    """A weight that keeps its dtype.

    Attributes:
        path: Module path.
        shape: Outputs and inputs, ``(N, K)``; ``(experts, N, K)`` for experts.
        nbytes: Its size.
        reason: Why it was not quantized.
    """

    path: str
    shape: tuple[int, ...]
    nbytes: int
    reason: str


@dataclass(frozen=True)
class QuantizationReport:
    """What was quantized; prints as text.

    Attributes:
        layers: The quantized weights, in the order of the model.
        kept: The weights of products and embeddings that keep their dtype.
        bytes_before: Size of all weights of the model before.
        bytes_after: Their size after.
        outputs: How the outputs changed on the evaluation data, or else on the first calls of the
            calibration data; empty without data.
        metrics: How the numbers changed that the user's functions compute.
    """

    layers: tuple[QuantizedLayer, ...]
    kept: tuple[KeptWeight, ...]
    bytes_before: int
    bytes_after: int
    outputs: tuple[OutputChange, ...] = ()
    metrics: tuple[MetricChange, ...] = ()

    @property
    def worst(self) -> tuple[QuantizedLayer, ...]:
        """The layers sorted by quality, worst first."""
        return tuple(sorted(self.layers, key=lambda layer: layer.quality))

    @property
    def other_groups(self) -> tuple[QuantizedLayer, ...]:
        """The layers whose group size differs from that of most layers."""
        sizes = Counter(layer.scheme.group_size for layer in self.layers)
        # The default size may fit no layer at all, so that the most frequent one is the usual one.
        usual = max(sizes, key=lambda size: sizes[size], default=0)
        return tuple(layer for layer in self.layers if layer.scheme.group_size != usual)

    def table(self, layers: Sequence[QuantizedLayer] | None = None) -> str:
        """Return a table of the given layers, or of all layers."""
        header = ("layer", "shape", "scheme", "before", "after", "SQNR dB", "output SQNR dB")
        rows = [_cells(layer) for layer in (self.layers if layers is None else layers)]
        return render(header, rows, indent="  ")

    def kept_table(self) -> str:
        """Return a table of the weights that keep their dtype, with the reasons."""
        rows = [(k.path, _dims(k.shape), size_text(k.nbytes), k.reason) for k in self.kept]
        return render(("layer", "shape", "size", "keeps its dtype"), rows, indent="  ")

    def output_table(self) -> str:
        """Return a table of the changes of the outputs."""
        header = ("output", "SQNR dB", "cosine", "largest change", "same choice")
        rows = [
            (o.name, f"{o.sqnr:.1f}", f"{o.cosine:.6f}", f"{o.largest:.3g}", f"{o.same_choice:.1%}")
            for o in self.outputs
        ]
        return render(header, rows, indent="  ")

    def metric_table(self) -> str:
        """Return a table of the numbers that the user's functions compute."""
        rows = [
            (m.name, f"{m.before:.6g}", f"{m.after:.6g}", f"{m.percent:+.2f} %")
            for m in self.metrics
        ]
        return render(("metric", "before", "after", "change"), rows, indent="  ")

    def __str__(self) -> str:
        """Return sizes, changes, the worst layers, and the weights that keep their dtype."""
        # A model whose only weights are empty has 0 bytes.
        ratio = self.bytes_before / max(self.bytes_after, 1)
        sizes = f"{size_text(self.bytes_before)} → {size_text(self.bytes_after)}"
        parts = [f"quantized {len(self.layers)} weights: {sizes} ({ratio:.1f} times smaller)"]
        if self.outputs:
            parts.append(f"change of the outputs:\n{self.output_table()}")
        if self.metrics:
            parts.append(self.metric_table())
        if self.layers:
            shown = self.worst[:WORST]
            more = f" (the worst {WORST})" if len(self.layers) > WORST else ""
            parts.append(f"layers by rounding error{more}:\n{self.table(shown)}")
        if self.other_groups:
            names = [f"{one.path} ({one.scheme.group_size})" for one in self.other_groups]
            more = f" and {len(names) - WORST} more" if len(names) > WORST else ""
            parts.append(f"groups of other sizes: {', '.join(names[:WORST])}{more}")
        if self.kept:
            parts.append(self.kept_table())
        return "\n\n".join(parts)


@dataclass(frozen=True)
class Quantized:
    """A quantized copy of a model.

    Attributes:
        model: The copy.
        report: What was quantized.
    """

    model: ir.Model
    report: QuantizationReport


def _cells(layer: QuantizedLayer) -> Sequence[object]:
    output = "-" if layer.output_sqnr is None else f"{layer.output_sqnr:.1f}"
    sizes = size_text(layer.bytes_before), size_text(layer.bytes_after)
    return layer.path, _dims(layer.shape), layer.scheme, *sizes, f"{layer.sqnr:.1f}", output


def _dims(shape: tuple[int, ...]) -> str:
    return str(list(shape))
