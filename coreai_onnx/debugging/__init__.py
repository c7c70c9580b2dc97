"""Inspection of models, comparison of executions, and timing."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from coreai_onnx.debugging.determinism import Determinism, Deviation, verify_determinism
from coreai_onnx.debugging.diff.inspection import Inspection, histogram, inspect_model
from coreai_onnx.debugging.diff.model_diff import Change, ModelDiff, diff_models
from coreai_onnx.debugging.diff.provider_gaps import provider_gaps
from coreai_onnx.debugging.profiling.profiles import profile
from coreai_onnx.runtime.profile.node_times import Execution, NodeTime, Profile, Total
from coreai_onnx.runtime.profile.timing import Timing, Timings, time_interleaved

if TYPE_CHECKING:
    from coreai_onnx.debugging.blaming.blame import Blame, blame
    from coreai_onnx.debugging.blaming.pass_verification import PassVerifier
    from coreai_onnx.debugging.blaming.search import Finding
    from coreai_onnx.debugging.comparing.comparison import Comparison, compare
    from coreai_onnx.debugging.reference.torch_side import Arguments

__all__ = [
    "Arguments",
    "Blame",
    "Change",
    "Comparison",
    "Determinism",
    "Deviation",
    "Execution",
    "Finding",
    "Inspection",
    "ModelDiff",
    "NodeTime",
    "PassVerifier",
    "Profile",
    "Timing",
    "Timings",
    "Total",
    "blame",
    "compare",
    "diff_models",
    "histogram",
    "inspect_model",
    "profile",
    "provider_gaps",
    "time_interleaved",
    "verify_determinism",
]


_WITH_TORCH = {
    "Arguments": "reference.torch_side",
    "Blame": "blaming.blame",
    "Comparison": "comparing.comparison",
    "Finding": "blaming.search",
    "PassVerifier": "blaming.pass_verification",
    "blame": "blaming.blame",
    "compare": "comparing.comparison",
}


def __getattr__(name: str) -> Any:
    """Import names that need torch on first access, so that the others work without it."""
    if name in _WITH_TORCH:
        return getattr(import_module(f"{__name__}.{_WITH_TORCH[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
