"""One model, loaded and optimized for a target: results before and after, in onnxruntime.

A model that a stock onnxruntime cannot run is loaded and optimized all the same: no error but a
typed one may come of it.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort

from coreai_onnx import OnnxProgram, session
from coreai_onnx.errors import CoreaiError
from coreai_onnx.passes import Target
from coreai_onnx.runtime.tensors.values import from_ort, to_ort
from tests.support.tolerances import assert_close
from tools.backend.models import BackendModel
from tools.operators.measuring import (
    CONVERSION_FAILED,
    MISMATCH,
    PASS,
    REFUSED,
    RUN_FAILED,
    limited,
    line,
    reason,
)

NOT_RUN = "optimized, not run"
"""onnxruntime does not run the model, or gives other results from one run to the next."""
FAULTY = {
    f"node/test_affine_grid_2d{suffix}_expanded": (
        "gives Range inputs of rank 1, behind an If with a condition that becomes a constant: "
        "onnxruntime then sees their rank and refuses the model"
    )
    for suffix in ("", "_align_corners")
}
"""Models that break ONNX's rules where a runtime does not look before they are optimized."""


@dataclass
class Outcome:
    """What became of a model and a target.

    Attributes:
        status: ``pass``, ``NOT_RUN``, or what went wrong.
        detail: The first line of it; for ``NOT_RUN``, why.
        resized: Nothing; other sweeps have it.
    """

    status: str
    detail: str = ""
    resized: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Before:
    """What a stock onnxruntime makes of a model.

    Attributes:
        results: Its outputs; None if there are none to compare with.
        reason: Why there are none.
        stored: Whether they are those that come with the model.
    """

    results: list[Any] | None
    reason: str = ""
    stored: bool = False


def run_stock(model: BackendModel) -> Before:
    """Run a model as it is, twice."""
    data = model.first_data()
    if data is None:
        return Before(None, "the model comes without inputs")
    inputs, stored = data
    try:
        with limited():
            stock = open_stock(model.proto)
            first, second = (run(stock, inputs) for _ in range(2))
    except Exception as error:  # noqa: BLE001 - onnxruntime's exceptions share no base
        return Before(None, line(error))
    if difference(second, first):
        return Before(None, "random")
    return Before(first, stored=not difference(first, stored, exception="sweep"))


def measure(model: BackendModel, target: Target, before: Before) -> Outcome:
    """Return what becomes of a model that is loaded and optimized for a target."""
    try:
        with limited(), tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "model.onnx")
            onnx.save(model.proto, path)
            program = OnnxProgram.load(path).optimize(target=target)
    except CoreaiError as error:
        return Outcome(REFUSED, line(error))
    except Exception as error:  # noqa: BLE001 - whatever it is, it is the finding
        return Outcome(CONVERSION_FAILED, line(error))
    if before.results is None:
        return Outcome(NOT_RUN, before.reason)
    data = model.first_data()
    assert data is not None
    try:
        with limited():
            after = run(_opened(program, target), data[0])
    except Exception as error:  # noqa: BLE001 - onnxruntime's exceptions share no base
        if model.name in FAULTY:
            return Outcome(NOT_RUN, FAULTY[model.name])
        return Outcome(RUN_FAILED, reason(error))
    changed = difference(after, before.results)
    return Outcome(MISMATCH, changed) if changed else Outcome(PASS)


def _opened(program: OnnxProgram, target: Target) -> ort.InferenceSession:
    if target == "kernels":
        return session(program, kernels=True, threads=1).ort
    return open_stock(program.to_proto())


def open_stock(proto: onnx.ModelProto) -> ort.InferenceSession:
    """Return a plain session."""
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    return ort.InferenceSession(proto.SerializeToString(), options)


def run(opened: ort.InferenceSession, inputs: Sequence[Any]) -> list[Any]:
    """Run a session on arrays, lists of arrays and None."""
    feed = {i.name: x for i, x in zip(opened.get_inputs(), inputs, strict=False)}
    types = [*opened.get_inputs(), *opened.get_outputs()]
    if not all(t.type.startswith("tensor(") and t.type != "tensor(string)" for t in types):
        return list(opened.run(None, feed))
    arrays = {name: np.ascontiguousarray(x).reshape(np.shape(x)) for name, x in feed.items()}
    values = opened.run_with_ort_values(None, {n: to_ort(a) for n, a in arrays.items()})
    return [from_ort(value) for value in values]


def difference(actual: Sequence[Any], expected: Sequence[Any], exception: str | None = None) -> str:
    """Say how results differ; empty if they are close. None is an empty optional."""
    if [x is None for x in actual] != [x is None for x in expected]:
        return "an optional output is empty in one of them only"
    pairs = [(a, e) for a, e in zip(actual, expected, strict=True) if a is not None]
    try:
        for a, e in pairs:
            assert_close(a, e, exception=exception)
    except AssertionError as error:
        return " ".join(str(error).split())[:300]
    return ""
