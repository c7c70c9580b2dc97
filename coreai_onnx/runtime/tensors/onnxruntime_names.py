"""Names of onnxruntime that it does not document, for the rest of the package."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime as ort

from coreai_onnx.model.dependencies import imported_from, require

require("onnxruntime", [(ort.OrtValue.ortvalue_from_numpy(np.zeros(1)), ("_numpy_obj",))])


def wraps_array(value: ort.OrtValue) -> bool:
    """Whether a value is over the memory of a numpy array, which it keeps alive."""
    return value._numpy_obj is not None  # noqa: SLF001 - nothing public tells it


def operator_usage_tools() -> tuple[type[Any], type[Any]]:
    """Return ``OperatorTypeUsageManager`` and ``OrtFormatModelProcessor`` of onnxruntime's tools.

    They are imported at the first call, since few programs need them.
    """
    with imported_from("onnxruntime"):
        from onnxruntime.tools.ort_format_model.operator_type_usage_processors import (
            OperatorTypeUsageManager,
        )
        from onnxruntime.tools.ort_format_model.ort_model_processor import OrtFormatModelProcessor
    return OperatorTypeUsageManager, OrtFormatModelProcessor
