"""The same measurement of ``torch.onnx.export(dynamo=True)``, for the column beside ours."""

from __future__ import annotations

from typing import Any

import onnxruntime as ort
import torch

from coreai_onnx.runtime.tensors.values import from_ort, to_ort
from tests.support.tolerances import as_numpy
from tools.backend.measuring import open_stock
from tools.foreign.measuring import SECONDS, Outcome, Progress, Subject, run_at_both
from tools.operators.measuring import (
    CONVERSION_FAILED,
    NOT_EXPORTED,
    RUN_FAILED,
    limited,
    line,
)


def measure_torch_onnx(subject: Subject, progress: Progress) -> Outcome:
    """Return what becomes of a model that torch's own exporter converts."""
    progress(NOT_EXPORTED)
    try:
        exported = subject.exported()
    except Exception as error:  # noqa: BLE001 - torch.export raises anything
        return Outcome(NOT_EXPORTED, line(error))
    progress(CONVERSION_FAILED)
    try:
        with limited(SECONDS), torch.no_grad():
            program = torch.onnx.export(exported, dynamo=True, verbose=False)
            assert program is not None
            session = open_stock(program.model_proto)
    except Exception as error:  # noqa: BLE001 - whatever it is, it is the finding
        return Outcome(CONVERSION_FAILED, line(error))
    progress(RUN_FAILED)
    return run_at_both(subject, lambda flat, _: _run(session, flat), [False])


def _run(session: ort.InferenceSession, flat: list[torch.Tensor]) -> list[Any]:
    names = [i.name for i in session.get_inputs()]
    arrays = [as_numpy(x) for x in flat]  # their memory is used while the session runs
    feed = {name: to_ort(x) for name, x in zip(names, arrays, strict=True)}
    return [from_ort(x) for x in session.run_with_ort_values(None, feed)]
