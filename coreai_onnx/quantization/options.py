"""The options of `OnnxProgram.quantize`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypedDict, Unpack

import onnx_ir as ir

from coreai_onnx.errors import QuantizationError, failures_as
from coreai_onnx.quantization.activations.integer_models import quantize_activations
from coreai_onnx.quantization.activations.ranges import PERCENTILE, CalibrationMethod, Clipping
from coreai_onnx.quantization.calibration import Feed
from coreai_onnx.quantization.evaluation import beginning, output_changes
from coreai_onnx.quantization.quantizer import quantize_models
from coreai_onnx.quantization.report import Quantized
from coreai_onnx.quantization.rules import MINIMUM_SIZE, Rule, Rules
from coreai_onnx.quantization.weights.rewriting import BodiesOf
from coreai_onnx.quantization.weights.scheme import (
    CALIBRATED,
    Method,
    ScaleDtype,
    Scheme,
    check_choice,
)

Metric = Callable[[Any], float]
"""Computes a number from an `OnnxProgram`."""
Calls = Iterable[Feed] | Mapping[str, Iterable[Feed]]
"""The inputs of calls; for several entrypoints, by their names."""
_FLAGS = ("symmetric", "embeddings", "convolutions", "activations")
_ACTIVATION_BITS = (0, 8, 16)
MAX_WORKERS = 1024
"""As of the threads of sessions."""
_NEEDS_DATA = "needs calibration data\n  give calibration=[inputs of a few calls]"


class QuantizeOptions(TypedDict, total=False):
    """The options of a quantization besides bits and group size; all have defaults.

    Attributes:
        method: ``"hqq"`` (the default), ``"rtn"``, ``"palette"``, or, with calibration data,
            ``"gptq"`` or ``"awq"``; see `coreai_onnx.quantization.weights.scheme.Scheme`.
        symmetric: Whether groups have no zero points; by default they have.
        scale_dtype: Dtype of the scales in the file, ``"float16"`` (the default) or ``"float32"``.
        activation_bits: 0 (the default), or 8 to round the inputs of the products to 8 bits when
            the model runs, with a scale for each group of a row: faster, and without calibration.
            With ``activations``: 8 (the default) or 16.
        calibration: The inputs of typical calls of the only entrypoint, or of ``main``: a mapping
            by name, or a tuple by position, for each call. For several entrypoints, a mapping of
            their names to their calls.
        rules: Patterns of module paths, or of names of weights, to what is different for them:
            bits, a mapping of the fields of a scheme, or None to keep the dtype. The first pattern
            that matches counts: ``{"*lm_head": 8, "*.layers.0.*": {"method": "rtn"}}``.
        skip: Patterns of weights that keep their dtype.
        embeddings: Whether embeddings are quantized; by default they are.
        convolutions: Whether weights of convolutions are quantized as well, in groups of whole
            kernels of about ``group_size`` elements; by default they are not. They are dequantized
            when the file is loaded. ``"gptq"`` and ``"awq"`` are ``"hqq"`` for them.
        minimum_size: Least number of elements of a weight that no pattern matches; 4096 by default.
        activations: Whether the inputs of products and convolutions are rounded to 8 bits as well,
            in ranges that the calibration data shows; by default they are not. Weights have 8 bits
            then, with a scale for each output, and only ``activation_bits``, ``calibration``,
            ``calibration_method``, ``evaluation``, ``metrics``, ``percentile``, ``rules`` (to
            None) and ``skip`` have an effect.
        calibration_method: The range of an activation: ``"minmax"`` (the default), that of all
            values; ``"percentile"``, without the smallest and the largest ones; ``"entropy"``, the
            one that changes the distribution of the values least.
        percentile: The share of the values, in percent, above and below the ends of a range with
            ``"percentile"``; 99.99 by default.
        evaluation: The inputs of calls on which the report measures the change of the outputs, as
            for ``calibration``; by default the first 4 calls of that.
        metrics: Functions of a program by name, such as a perplexity or an accuracy: the report has
            the number of the program before, and of the quantized one.
        workers: Threads that quantize, 1 to 1024; by default one for each core, up to 8. The file
            is the same for any number, and each thread holds about 10 MiB.
    """

    method: Method
    symmetric: bool
    scale_dtype: ScaleDtype
    activation_bits: int
    calibration: Calls | None
    rules: Mapping[str, Rule] | None
    skip: Sequence[str]
    embeddings: bool
    convolutions: bool
    minimum_size: int
    activations: bool
    calibration_method: CalibrationMethod
    percentile: float
    evaluation: Calls | None
    metrics: Mapping[str, Metric] | None
    workers: int | None


def rules_of(bits: int, group_size: int = 32, **options: Unpack[QuantizeOptions]) -> Rules:
    """Return the rules that the options describe.

    Raises:
        QuantizationError: An option is unknown or out of range.
    """
    if unknown := set(options) - QuantizeOptions.__optional_keys__:
        names = ", ".join(sorted(QuantizeOptions.__optional_keys__))
        raise QuantizationError(f"there is no option {min(unknown)!r}; there are {names}")
    for name, value in options.items():
        if name in _FLAGS and not isinstance(value, bool):
            raise QuantizationError(f"{name}={value!r}; give True or False")
    workers = options.get("workers")
    if workers is not None and not (type(workers) is int and 1 <= workers <= MAX_WORKERS):
        raise QuantizationError(f"workers={workers!r}; give a number from 1 to {MAX_WORKERS}")
    metrics = options.get("metrics")
    if metrics is not None and not isinstance(metrics, Mapping):
        raise QuantizationError(
            f"metrics is a {type(metrics).__name__}\n  give a mapping of names to functions"
        )
    # This raises an error for a wrong option before the calls of calibration, which take long.
    _clipping(options)
    rounding = options.get("activation_bits", 0)
    if options.get("activations"):
        check_choice("activation_bits", rounding, _ACTIVATION_BITS)
    scheme = Scheme(
        bits,
        group_size,
        options.get("method", "hqq"),
        options.get("symmetric", False),
        options.get("scale_dtype", "float16"),
        # A scheme rounds activations at run time, to 8 bits; static ones may have 16.
        0 if options.get("activations") else rounding,
    )
    if options.get("calibration") is None:
        if options.get("activations"):
            raise QuantizationError(f"activations=True {_NEEDS_DATA}")
        # With rules, each weight may have another method.
        if scheme.method in CALIBRATED and not options.get("rules"):
            raise QuantizationError(f"method={scheme.method!r} {_NEEDS_DATA}")
    return Rules.of(
        scheme,
        options.get("rules"),
        options.get("skip", ()),
        embeddings=options.get("embeddings", True),
        minimum_size=options.get("minimum_size", MINIMUM_SIZE),
        convolutions=options.get("convolutions", False),
    )


def quantize_entrypoints(
    models: Mapping[str, ir.Model],
    calibrated: str,
    bits: int,
    group_size: int,
    bodies_of: BodiesOf,
    **options: Unpack[QuantizeOptions],
) -> dict[str, Quantized]:
    """Quantize the models of a program, in copies.

    Args:
        models: The models by entrypoint, which stay as they are.
        calibrated: The entrypoint that the calibration and evaluation data is for, unless it names
            entrypoints itself; empty without data.
        bits: Size of a weight.
        group_size: Number of neighbors that share a scale.
        bodies_of: Adds functions to a model, such as `coreai_onnx.bodies.quantized.FewBitBodies`.
        **options: The other options; ``metrics`` are left to the caller.

    Returns:
        The quantized copies, by entrypoint.

    Raises:
        QuantizationError: An option is invalid, or the models cannot be quantized.
    """
    rules = rules_of(bits, group_size, **options)
    feeds = _by_entrypoint("calibration", options.get("calibration"), models, calibrated)
    evaluation = _by_entrypoint("evaluation", options.get("evaluation"), models, calibrated)
    with failures_as(QuantizationError, "the model cannot be quantized"):
        # The first calls are read twice, and an iterator must not lose them.
        if options.get("evaluation") is None:
            for name, calls in feeds.items():
                evaluation[name], feeds[name] = beginning(calls)
        if options.get("activations"):
            bits = options.get("activation_bits") or _ACTIVATION_BITS[1]
            done = quantize_activations(
                models, rules, feeds, bits=bits, clipping=_clipping(options)
            )
        else:
            # With an empty mapping, the error for missing data would speak of loops and branches.
            done = quantize_models(models, rules, bodies_of, feeds or None, options.get("workers"))
        for name, calls in evaluation.items():
            done[name] = _evaluated(models[name], done[name], calls)
    return done


def _clipping(options: QuantizeOptions) -> Clipping:
    """Return which values are outside of the ranges of activations."""
    method = options.get("calibration_method", "minmax")
    return Clipping(method, options.get("percentile", PERCENTILE))


def _by_entrypoint(
    what: str, data: Calls | None, models: Mapping[str, ir.Model], calibrated: str
) -> dict[str, Iterable[Feed]]:
    """Return the calls of each entrypoint."""
    if data is None:
        return {}
    if not isinstance(data, Mapping):
        if isinstance(data, str):
            raise QuantizationError(
                f"{what} must be a list of the inputs of calls, got a text\n"
                "  only the export of a language model takes a text: for an exported file, give "
                "coreai_onnx.huggingface.quantizing.calls_of_file(path, text)"
            )
        if not isinstance(data, Iterable):
            raise QuantizationError(
                f"{what} must be a list of the inputs of calls, got {type(data).__name__}"
            )
        return {calibrated: data}
    if unknown := [name for name in data if name not in models]:
        raise QuantizationError(
            f"{what} is a mapping, and there is no entrypoint {unknown[0]!r}; there are "
            f"{', '.join(models)}\n  give a list of the inputs of calls"
        )
    return dict(data)


def _evaluated(model: ir.Model, done: Quantized, feeds: Iterable[Feed]) -> Quantized:
    """Return a result whose report has the change of the outputs."""
    outputs = output_changes(model, done.model, feeds)
    return replace(done, report=replace(done.report, outputs=outputs))
