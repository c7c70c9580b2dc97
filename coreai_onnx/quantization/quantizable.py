"""The methods of a program that change the dtype of its weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Self, Unpack

import onnx_ir as ir

from coreai_onnx.errors import QuantizationError, failures_as
from coreai_onnx.messages import begin_stage
from coreai_onnx.model.metadata import adopt
from coreai_onnx.runtime.sessions.runnable import Runnable

if TYPE_CHECKING:
    from coreai_onnx.quantization.evaluation import MetricChange
    from coreai_onnx.quantization.half.precision import DtypeOptions, DtypeReport
    from coreai_onnx.quantization.options import Metric, QuantizeOptions
    from coreai_onnx.quantization.report import QuantizationReport
    from coreai_onnx.quantization.weights.rewriting import BodiesOf


class Quantizable(Runnable):
    """Models by entrypoint, which can be quantized.

    Attributes:
        quantization_reports: Entrypoint to the report of `quantize`; empty before.
        dtype_reports: Entrypoint to the report of `convert_dtype`; empty before.
    """

    def __init__(self, models: dict[str, ir.Model]) -> None:
        """Hold the models, at least one."""
        super().__init__(models)
        self.quantization_reports: dict[str, QuantizationReport] = {}
        self.dtype_reports: dict[str, DtypeReport] = {}

    @property
    def quantization_report(self) -> QuantizationReport | None:
        """The report of the only entrypoint, or of ``main``; None before `quantize`."""
        return self.quantization_reports.get(self._choose(None))

    def quantize(
        self, bits: int = 4, group_size: int = 32, **options: Unpack[QuantizeOptions]
    ) -> Self:
        """Quantize the weights of products and embeddings, in place.

        ``MatMul`` and ``Gemm`` with a constant weight become calls of ``linear_nbits``, embeddings
        ``embedding_nbits``, also in the functions of externalized modules. Run ``optimize`` for the
        target afterwards. See ``docs/quantization.md``.

        Args:
            bits: Size of a weight: 8, 4, 3 or 2.
            group_size: Number of neighbors in a row of a weight that share a scale; 0 for a whole
                row.
            **options: ``method``, ``symmetric``, ``scale_dtype``, ``activation_bits``,
                ``calibration``, ``evaluation``, ``metrics``, ``rules``, ``skip``, ``embeddings``,
                ``convolutions``, ``minimum_size``, ``activations``, ``calibration_method`` and
                ``percentile``, as in `coreai_onnx.quantization.options.QuantizeOptions`.

        Returns:
            The program itself. ``quantization_report`` lists sizes, rounding errors and the change
            of outputs and metrics.

        Raises:
            QuantizationError: If an argument is out of range, the model is quantized already or has
                nothing to quantize, a weight is not finite, or the calibration data is missing or
                does not fit the model; the program is unchanged.
        """
        from coreai_onnx.quantization.options import quantize_entrypoints  # imports torch

        begin_stage("quantize")
        data = [options.get("calibration"), options.get("evaluation")]
        # A mapping names its entrypoints; anything else needs the only one, or ``main``.
        has_calls = any(calls is not None and not isinstance(calls, Mapping) for calls in data)
        calibrated = self._choose(None) if has_calls else ""
        done = quantize_entrypoints(
            self.models, calibrated, bits, group_size, self._few_bit_bodies(), **options
        )
        reports = {name: one.report for name, one in done.items()}
        if metrics := options.get("metrics"):
            # Metrics may fail: until all are computed, the result is a program of its own.
            quantized = type(self)({name: one.model for name, one in done.items()})
            changes = tuple(_change(name, of, self, quantized) for name, of in metrics.items())
            main = self._choose(None)
            reports[main] = replace(reports[main], metrics=changes)
        for name, one in done.items():
            adopt(one.model, self.models[name])
        self.quantization_reports = reports
        # Open sessions hold the weights as they were.
        self._close_sessions()
        return self

    def convert_dtype(self, dtype: str = "float16", **options: Unpack[DtypeOptions]) -> Self:
        """Convert from float32 to ``"float16"`` or ``"bfloat16"``, in place.

        Args:
            dtype: The dtype.
            **options: ``keep_io``, ``keep`` and ``calibration``, as in
                `coreai_onnx.quantization.half.precision.DtypeOptions`.

        Returns:
            The program itself. ``dtype_reports`` lists what keeps float32, and why.

        Raises:
            QuantizationError: If an argument does not fit; the program is unchanged.
        """
        from coreai_onnx.quantization.half.precision import convert_models  # imports torch

        calibrated = "" if options.get("calibration") is None else self._choose(None)
        self.dtype_reports = convert_models(self.models, calibrated, dtype, **options)
        self._close_sessions()
        return self

    def _few_bit_bodies(self) -> BodiesOf:
        """Return what adds the functions of quantized weights to a model."""
        raise NotImplementedError


def _change(name: str, metric: Metric, before: Quantizable, after: Quantizable) -> MetricChange:
    """Return the number of a program before and after."""
    from coreai_onnx.quantization.evaluation import MetricChange

    begin_stage(f"metric {name}")
    with failures_as(QuantizationError, f"the metric {name!r} cannot be computed"):
        return MetricChange(name, float(metric(before)), float(metric(after)))
