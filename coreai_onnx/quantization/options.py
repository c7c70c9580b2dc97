"""The options of `OnnxProgram.quantize`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypedDict, Unpack

import onnx_ir as ir

from coreai_onnx.errors import QuantizationError, failures_as
from coreai_onnx.quantization.calibration import Feed
from coreai_onnx.quantization.evaluation import beginning, output_changes
from coreai_onnx.quantization.integer_models import quantize_activations
from coreai_onnx.quantization.quantizer import quantize_models
from coreai_onnx.quantization.report import Quantized
from coreai_onnx.quantization.rules import MINIMUM_SIZE, Rule, Rules
from coreai_onnx.quantization.scheme import Method, ScaleDtype, Scheme

Metric = Callable[[Any], float]
"""Computes a number from an `OnnxProgram`."""


class QuantizeOptions(TypedDict, total=False):
    """The options of a quantization besides bits and group size; all have defaults.

    Attributes:
        method: ``"hqq"`` (the default), ``"rtn"``, ``"palette"``, or, with calibration data,
            ``"gptq"`` or ``"awq"``; see `coreai_onnx.quantization.scheme.Scheme`.
        symmetric: Whether groups have no zero points; by default they have.
        scale_dtype: Dtype of the scales in the file, ``"float16"`` (the default) or ``"float32"``.
        activation_bits: 0 (the default), or 8 to round the inputs of the products to 8 bits when
            the model runs, with a scale for each group of a row: faster, and without calibration.
        calibration: The inputs of typical calls of the only entrypoint, or of ``main``: a mapping
            by name, or a tuple by position, for each call.
        rules: Patterns of module paths, or of names of weights, to what is different for them:
            bits, a mapping of the fields of a scheme, or None to keep the dtype. The first pattern
            that matches counts: ``{"*lm_head": 8, "*.layers.0.*": {"method": "rtn"}}``.
        skip: Patterns of weights that keep their dtype.
        embeddings: Whether embeddings are quantized; by default they are.
        minimum_size: Least number of elements of a weight that no pattern matches; 4096 by default.
        activations: Whether the inputs of products and convolutions are rounded to 8 bits as well,
            in ranges that the calibration data shows; by default they are not. Weights have 8 bits
            then, with a scale for each output, and only ``calibration``, ``evaluation``,
            ``metrics``, ``rules`` (to None) and ``skip`` have an effect.
        evaluation: The inputs of calls on which the report measures the change of the outputs, as
            for ``calibration``; by default the first 4 calls of that.
        metrics: Functions of a program by name, such as a perplexity or an accuracy: the report has
            the number of the program before, and of the quantized one.
    """

    method: Method
    symmetric: bool
    scale_dtype: ScaleDtype
    activation_bits: int
    calibration: Iterable[Feed] | None
    rules: Mapping[str, Rule] | None
    skip: Sequence[str]
    embeddings: bool
    minimum_size: int
    activations: bool
    evaluation: Iterable[Feed] | None
    metrics: Mapping[str, Metric] | None


def rules_of(bits: int, group_size: int = 32, **options: Unpack[QuantizeOptions]) -> Rules:
    """Return the rules that the options describe.

    Raises:
        QuantizationError: An option is unknown or out of range.
    """
    if unknown := set(options) - QuantizeOptions.__optional_keys__:
        known = ", ".join(sorted(QuantizeOptions.__optional_keys__))
        raise QuantizationError(f"there is no option {min(unknown)!r}; there are {known}")
    scheme = Scheme(
        bits,
        group_size,
        options.get("method", "hqq"),
        options.get("symmetric", False),
        options.get("scale_dtype", "float16"),
        options.get("activation_bits", 0),
    )
    return Rules.of(
        scheme,
        options.get("rules"),
        options.get("skip", ()),
        embeddings=options.get("embeddings", True),
        minimum_size=options.get("minimum_size", MINIMUM_SIZE),
    )


def quantize_entrypoints(
    models: Mapping[str, ir.Model],
    calibrated: str,
    bits: int,
    group_size: int,
    **options: Unpack[QuantizeOptions],
) -> dict[str, Quantized]:
    """Quantize the models of a program, in copies.

    Args:
        models: The models by entrypoint, which stay as they are.
        calibrated: The entrypoint that the calibration and evaluation data is for; empty without
            data.
        bits: Size of a weight.
        group_size: Number of neighbors that share a scale.
        **options: The other options; ``metrics`` are left to the caller.

    Returns:
        The quantized copies, by entrypoint.

    Raises:
        QuantizationError: An option is invalid, or the models cannot be quantized.
    """
    rules = rules_of(bits, group_size, **options)
    feeds, evaluation = options.get("calibration"), options.get("evaluation")
    with failures_as(QuantizationError, "the model cannot be quantized"):
        if evaluation is None and feeds is not None:
            evaluation, feeds = beginning(feeds)
        if options.get("activations"):
            done = quantize_activations(models, calibrated, rules, feeds)
        else:
            done = quantize_models(models, rules, None if feeds is None else {calibrated: feeds})
        if evaluation is not None:
            done[calibrated] = _evaluated(models[calibrated], done[calibrated], evaluation)
    return done


def _evaluated(model: ir.Model, done: Quantized, feeds: Iterable[Feed]) -> Quantized:
    """Return a result whose report has the change of the outputs."""
    outputs = output_changes(model, done.model, feeds)
    return replace(done, report=replace(done.report, outputs=outputs))
