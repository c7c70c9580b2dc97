"""Quantizes the weights of the models of a program."""

from __future__ import annotations

import hashlib
import math
import time
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import numpy as np
import onnx_ir as ir

from coreai_onnx.errors import QuantizationError, SlowQuantizationWarning
from coreai_onnx.messages import begin_stage
from coreai_onnx.model.files.mapped_tensors import MappedTensor
from coreai_onnx.model.inventory import weights
from coreai_onnx.quantization.calibration import Array, Feed, second_moments
from coreai_onnx.quantization.report import (
    KeptWeight,
    QuantizationReport,
    Quantized,
    QuantizedLayer,
)
from coreai_onnx.quantization.rules import Rules
from coreai_onnx.quantization.weights.convolutions import convolution_weights, rewrite_convolutions
from coreai_onnx.quantization.weights.packed_weights import PackedWeight, pack_weight
from coreai_onnx.quantization.weights.products import MatrixWeight, Products
from coreai_onnx.quantization.weights.rewriting import (
    BodiesOf,
    Rewriting,
    refuse_few_bits,
    refuse_integers,
)
from coreai_onnx.quantization.weights.scheme import CALIBRATED, Scheme
from coreai_onnx.quantization.weights.specialization import specialize

LONG = 600.0
"""Seconds that the weights that are left may take without a warning."""
SAMPLE = 10.0
"""Seconds of work from which the time of the others is estimated."""


@dataclass(frozen=True)
class _Plan:
    """A copy of a model with the decisions about its weights."""

    products: Products
    schemes: dict[MatrixWeight, Scheme]
    kept: dict[MatrixWeight, str]


def quantize_models(
    models: Mapping[str, ir.Model],
    rules: Rules,
    bodies_of: BodiesOf,
    calibration: Mapping[str, Iterable[Feed]] | None = None,
    workers: int | None = None,
) -> dict[str, Quantized]:
    """Quantize the weights of products and embeddings in copies of the models.

    A weight that several models or layers share is quantized once, also if a copy of it is
    transposed.

    Args:
        models: The models by entrypoint, which stay as they are.
        rules: Select the scheme of each weight.
        bodies_of: Adds functions to a model, such as `coreai_onnx.bodies.quantized.FewBitBodies`.
        calibration: The inputs of calls by entrypoint.
        workers: Threads; see `pack_weight`.

    Returns:
        The quantized copies, by entrypoint.

    Raises:
        QuantizationError: A model is quantized already or has nothing to quantize, a weight is not
            finite, its groups do not fit, or the calibration data is missing or does not fit.
    """
    plans = {name: _plan(model, rules) for name, model in models.items()}
    # A pattern may match in one entrypoint and not in the others.
    rules.check_used([w for plan in plans.values() for w in (*plan.schemes, *plan.kept)])
    if not any(plan.schemes for plan in plans.values()):
        for name, plan in plans.items():
            if not plan.kept:
                refuse_integers(models[name])
        raise QuantizationError(_nothing([k for plan in plans.values() for k in plan.kept.items()]))
    moments = _moments(models, plans, calibration)
    done: dict[object, PackedWeight] = {}
    results: dict[str, Quantized] = {}
    for name, plan in plans.items():
        packed = _packed(plan, moments, done, workers)
        kinds = {w.value: (scheme, w.by_rows) for w, scheme in plan.schemes.items()}
        # A function has one body: calls that pass weights of different schemes need copies of it
        # first.
        bodies = bodies_of(plan.products.model)
        Rewriting(specialize(plan.products, kinds), packed, bodies).run()
        rewrite_convolutions(plan.products.model, packed, bodies)
        report = _report(models[name], plan, packed)
        results[name] = Quantized(plan.products.model, report)
    return results


def _plan(model: ir.Model, rules: Rules) -> _Plan:
    refuse_few_bits(model)
    products = Products(model.clone())
    plan = _Plan(products, {}, {})
    weights = convolution_weights(products) if rules.convolutions else []
    for weight in [*products.weights(), *weights]:
        chosen = rules.choose(weight)
        if isinstance(chosen, str):
            plan.kept[weight] = chosen
        else:
            plan.schemes[weight] = chosen
    tables = {_digest(weight) for weight in plan.schemes if weight.is_lookup}
    # A digest reads all of a weight: where no table has its shape, it is not computed.
    shapes = {weight.shape for weight in plan.schemes if weight.is_lookup}
    for weight, scheme in plan.schemes.items():
        # A method that minimizes the error of the product would distort the rows that are looked
        # up in a table, also if a product shares it.
        calibrated = scheme.method in CALIBRATED and weight.shape in shapes
        if calibrated and _digest(weight) in tables:
            plan.schemes[weight] = replace(scheme, method="hqq")
    return plan


def _nothing(kept: list[tuple[MatrixWeight, str]]) -> str:
    if not kept:
        return (
            "there is nothing to quantize: the model has no MatMul, Gemm, gather_mm or embedding "
            "with a constant weight"
        )
    lines = "".join(f"\n  {weight.path}: {reason}" for weight, reason in kept[:8])
    return f"there is nothing to quantize: all {len(kept)} weights keep their dtype{lines}"


def _moments(
    models: Mapping[str, ir.Model],
    plans: Mapping[str, _Plan],
    calibration: Mapping[str, Iterable[Feed]] | None,
) -> dict[int, Array]:
    """Return the second moments of inputs, by the ids of the weights' tensors."""
    by_tensor: dict[int, Array] = {}
    for name, feeds in (calibration or {}).items():
        chosen = {w.name: w for w in plans[name].schemes if not w.is_lookup}
        if chosen:
            shapes = {key: weight.shape for key, weight in chosen.items()}
            for key, moments in second_moments(models[name], shapes, feeds).items():
                # Entrypoints share the tensor of a weight, and both of their inputs count.
                tensor = id(chosen[key].tensor)
                by_tensor[tensor] = by_tensor[tensor] + moments if tensor in by_tensor else moments
    missing = [
        (w.path, scheme.method)
        for plan in plans.values()
        for w, scheme in plan.schemes.items()
        if scheme.method in CALIBRATED and id(w.tensor) not in by_tensor
    ]
    if missing:
        path, method = missing[0]
        raise QuantizationError(
            f"{path}: method={method!r} needs calibration data"
            + ("" if calibration is None else ", and its product is inside of a loop or branch")
            + '\n  give calibration=[inputs of a few calls], or choose method="hqq" for it'
        )
    return by_tensor


def _packed(
    plan: _Plan,
    moments: Mapping[int, Array],
    done: dict[object, PackedWeight],
    workers: int | None,
) -> dict[MatrixWeight, PackedWeight]:
    """Quantize the weights of a plan; equal weights with one scheme are quantized once."""
    packed: dict[MatrixWeight, PackedWeight] = {}
    sizes = [math.prod(weight.shape) for weight in plan.schemes]
    start, elements, warned = time.perf_counter(), 0, False
    for number, (weight, scheme) in enumerate(plan.schemes.items(), 1):
        begin_stage(f"quantize {number}/{len(plan.schemes)} {weight.path}")
        # The inputs are not a part of the key: a weight that layers share must stay one weight in
        # the file.
        key = scheme, _digest(weight)
        if key not in done:
            data = None if weight.is_lookup else moments.get(id(weight.tensor))
            done[key] = pack_weight(weight, scheme, data, workers)
            elements += sizes[number - 1]
            seconds = time.perf_counter() - start
            if not warned and seconds > SAMPLE:
                warned = _warn_if_long(sum(sizes[number:]), seconds / elements, scheme)
        packed[weight] = done[key]
    return packed


def _warn_if_long(elements: int, seconds: float, scheme: Scheme) -> bool:
    """Warn if the elements that are left take long; return whether they do.

    Args:
        elements: Their number.
        seconds: What each takes.
        scheme: How the last ones were quantized.
    """
    if elements * seconds < LONG:
        return False
    # 149 and 21 ns of CPU time for a weight: docs/large_models.md.
    faster = '\n  method="rtn" takes a seventh of the time of "hqq"'
    advice = "" if scheme.method == "rtn" else faster
    warnings.warn(
        f"{elements / 1e9:,.1f} billion weights are still to be quantized, which takes about "
        f"{elements * seconds / 60:,.0f} minutes at the pace of those before{advice}",
        SlowQuantizationWarning,
        stacklevel=2,
    )
    return True


def _digest(weight: MatrixWeight) -> bytes:
    """Return what equal matrices have in common, also if one is stored transposed."""
    if isinstance(weight.tensor, MappedTensor):
        return repr((weight.tensor.key, weight.shape)).encode()
    # Rows of outputs, so that a head and the transposed copy that passes made of it are equal.
    rows = np.ascontiguousarray(weight.matrix())
    digest = hashlib.blake2b(f"{rows.shape} {rows.dtype}".encode())
    # Arrays of ml_dtypes, such as bfloat16, have no buffer that hashlib reads.
    digest.update(rows.view(np.uint8).reshape(-1).data)
    return digest.digest()


def _report(
    model: ir.Model, plan: _Plan, packed: Mapping[MatrixWeight, PackedWeight]
) -> QuantizationReport:
    layers = [
        QuantizedLayer(
            weight.path,
            weight.name,
            weight.shape,
            done.scheme,
            weight.tensor.nbytes,
            done.nbytes,
            done.sqnr,
            done.output_sqnr,
        )
        for weight, done in packed.items()
    ]
    kept = [KeptWeight(w.path, w.shape, w.tensor.nbytes, why) for w, why in plan.kept.items()]
    after = weights(plan.products.model)[1]
    return QuantizationReport(tuple(layers), tuple(kept), weights(model)[1], after)
