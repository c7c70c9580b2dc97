"""Inspection of models, comparison of executions, and timing."""

from typing import TYPE_CHECKING, Any

from coreai_onnx.debugging.diff.inspection import Inspection, histogram, inspect_model
from coreai_onnx.debugging.diff.model_diff import Change, ModelDiff, diff_models
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
    "time_interleaved",
]


def __getattr__(name: str) -> Any:
    """Import names that need torch on first access, so that the others work without it."""
    if name in {"Comparison", "compare"}:
        from coreai_onnx.debugging.comparing import comparison

        return getattr(comparison, name)
    if name in {"Blame", "blame"}:
        from coreai_onnx.debugging.blaming import blame as blaming

        return getattr(blaming, name)
    if name == "PassVerifier":
        from coreai_onnx.debugging.blaming.pass_verification import PassVerifier

        return PassVerifier
    if name == "Finding":
        from coreai_onnx.debugging.blaming.search import Finding

        return Finding
    if name == "Arguments":
        from coreai_onnx.debugging.reference.torch_side import Arguments

        return Arguments
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
