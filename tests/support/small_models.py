"""Hand-made models for the tests of runtime, program, debugging and command line."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir


def parse(text: str, metadata: dict[str, Any] | None = None) -> ir.Model:
    """Read ONNX text; metadata values that are no strings are written as JSON."""
    model = ir.from_proto(onnx.parser.parse_model(text))
    for key, value in (metadata or {}).items():
        model.metadata_props[key] = value if isinstance(value, str) else json.dumps(value)
    return model


def add_model(ranges: dict[str, Any] | None = None) -> ir.Model:
    """``sum = left + right`` over int64[batch, seq] and float32: two inputs that share dims."""
    text = """<ir_version: 10, opset_import: ["": 21]>
    agraph (int64[batch, seq] ids, float[batch, seq] mask) => (float[batch, seq] sum)
    { floats = Cast<to = 1>(ids)  sum = Add(floats, mask) }"""
    return parse(text, {"coreai.range_constraints": ranges} if ranges else None)


def endless_model() -> ir.Model:
    """``y`` of a loop over ``x`` that takes centuries."""
    return parse("""<ir_version: 10, opset_import: ["": 21]>
    agraph (float x) => (float y) {
        count = Constant<value = int64 {9223372036854775807}>()
        go = Constant<value = bool {1}>()
        y = Loop<body = step (int64 i, bool going, float s) => (bool on, float t)
            { on = Identity(going)  t = Neg(s) }>(count, go, x)
    }""")


def echo_model(dtype: str, dims: str = "batch, 4") -> ir.Model:
    """``y = x`` of an ONNX dtype (``bfloat16``)."""
    return parse(f"""<ir_version: 10, opset_import: ["": 21]>
    agraph ({dtype}[{dims}] x) => ({dtype}[{dims}] y) {{ y = Identity(x) }}""")


def phase_model() -> ir.Model:
    """``y = z - phase`` over complex64[n], and a complex state ``phase`` that becomes ``y``."""
    text = """<ir_version: 10, opset_import: ["": 21]>
    agraph (float[n, 2] z, float[1, 2] phase) => (float[n, 2] y, float[n, 2] phase_out)
    <float[1, 2] phase = {1.0, 2.0}> { y = Sub(z, phase)  phase_out = Identity(y) }"""
    states = [{"input": "phase", "output": "phase_out"}]
    names = ["z", "phase", "y", "phase_out"]
    return parse(text, {"coreai.states": states, "coreai.complex": names})


def counter_model(*, initial: bool = True) -> ir.Model:
    """``y = x * count``, a state ``count`` that goes up by one, starting from 1."""
    text = """<ir_version: 10, opset_import: ["": 21]>
    agraph (float[n] x, float[1] count) => (float[n] y, float[1] count_out)
    <float[1] one = {1.0}, float[1] count = {1.0}>
    { y = Mul(x, count)  count_out = Add(count, one) }"""
    model = parse(text, {"coreai.states": [{"input": "count", "output": "count_out"}]})
    if not initial:
        del model.graph.initializers["count"]
    return model


def cache_model() -> ir.Model:
    """A cache of shape [batch, past] that grows by the input at every call."""
    text = """<ir_version: 10, opset_import: ["": 21]>
    agraph (float[batch, seq] x, float[batch, past] cache)
      => (float[batch] y, float[b, t] cache_out)
    { cache_out = Concat<axis = 1>(cache, x)  axes = Constant<value_ints = [1]>()
      y = ReduceSum<keepdims = 0>(cache_out, axes) }"""
    return parse(text, {"coreai.states": [{"input": "cache", "output": "cache_out"}]})


def rows_model(*, reads_old: bool = False) -> ir.Model:
    """A state of 128 KiB, ones at first, of which a call replaces one row by ``x``.

    ``y`` is the sum of each column of the new state, in a shape that the call gives; minus that of
    the old state if it is read too. The nodes that may fail have names: embed, update, last.
    """
    old = "old = ReduceSum<keepdims = 0>(cache, axes)  sums = Sub(total, old)"
    text = f"""<ir_version: 10, opset_import: ["": 21]>
    agraph (float[w] x, int64[1, 1] row, int64[r] shape, float[512, 64] cache)
      => (float[n] y, float[512, 64] cache_out)
    {{ wide = Constant<value_ints = [1, 64]>()
      [embed] checked = Reshape(x, wide)
      [update] cache_out = ScatterND(cache, row, checked)
      axes = Constant<value_ints = [0]>()  total = ReduceSum<keepdims = 0>(cache_out, axes)
      {old if reads_old else "sums = Identity(total)"}
      [last] y = Reshape(sums, shape) }}"""
    model = parse(text, {"coreai.states": [{"input": "cache", "output": "cache_out"}]})
    cache = next(value for value in model.graph.inputs if value.name == "cache")
    cache.const_value = ir.tensor(np.ones((512, 64), np.float32), name="cache")
    model.graph.register_initializer(cache)
    return model


def growing_model() -> ir.Model:
    """A state of shape [batch, past, 256] to which each call appends ``x``; ``y`` is its sum."""
    text = """<ir_version: 10, opset_import: ["": 21]>
    agraph (float[batch, seq, 256] x, float[batch, past, 256] cache)
      => (float[batch, 256] y, float[batch, "past + seq", 256] cache_out)
    { cache_out = Concat<axis = 1>(cache, x)  axes = Constant<value_ints = [1]>()
      y = ReduceSum<keepdims = 0>(cache_out, axes) }"""
    text = text.replace('"past + seq"', "total")
    model = parse(text, {"coreai.states": [{"input": "cache", "output": "cache_out"}]})
    model.graph.outputs[1].shape = ir.Shape(["batch", "past + seq", 256])
    return model


def layers_model() -> ir.Model:
    """Two calls of a module that calls a user's composite twice, and one direct call of it."""
    text = """<ir_version: 10, opset_import: ["": 21, "ai.coreai.user": 1, "ai.coreai.module": 1]>
    agraph (float[batch, 4] x) => (float[batch, 4] y)
    { a = ai.coreai.module.Block(x)  b = ai.coreai.module.Block(a)
      c = ai.coreai.user.square(b)  y = Neg(c) }
    <domain: "ai.coreai.module", opset_import: ["": 21, "ai.coreai.user": 1]>
    Block (x) => (y)
    { a = ai.coreai.user.square(x)  b = ai.coreai.user.square(a)  y = Relu(b) }
    <domain: "ai.coreai.user", opset_import: ["": 21]>
    square (x) => (y) { y = Mul(x, x) }"""
    return parse(text, {"coreai.version": "0.1.0", "coreai.entrypoint": "main"})


def linear_model(rows: int = 8, columns: int = 64, seed: int = 0) -> ir.Model:
    """``y = x @ weight + bias``, with a small int64 initializer that nothing needs moved."""
    text = f"""<ir_version: 10, opset_import: ["": 21]>
    agraph (float[batch, {rows}] x) => (float[batch, {columns}] y)
    <int64[2] shape = {{-1, {columns}}}>
    {{ product = MatMul(x, weight)  biased = Add(product, bias)  y = Reshape(biased, shape) }}"""
    proto = onnx.parser.parse_model(text)
    for name, array in linear_weights(rows, columns, seed).items():
        proto.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    return ir.from_proto(proto)


def linear_weights(rows: int = 8, columns: int = 64, seed: int = 0) -> dict[str, np.ndarray]:
    """The weights of ``linear_model``; the bias has an odd number of bytes before it in a file."""
    rng = np.random.default_rng(seed)
    return {
        "weight": rng.standard_normal((rows, columns)).astype(np.float32),
        "bias": rng.standard_normal(columns).astype(np.float32),
    }
