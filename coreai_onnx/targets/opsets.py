"""The targets of a file, and the opset that a program is converted to."""

from __future__ import annotations

from typing import Literal, get_args

from coreai_onnx.errors import StagingError
from coreai_onnx.targets.providers import CUDA, WEBGPU
from coreai_onnx.targets.releases import newest_opset, oldest_onnxruntime

Target = Literal["onnxruntime", "portable", "kernels", "contrib", "webgpu", "cuda"]
"""What will run a file; `coreai_onnx.passes.passes_for` describes the targets."""
TARGETS: tuple[Target, ...] = get_args(Target)
PROVIDER_TARGETS: dict[Target, str] = {"webgpu": WEBGPU, "cuda": CUDA}
"""The targets that are execution providers. Their files have opset 18 and no functions: onnxruntime
registers kernels for later revisions of many operators on the CPU only."""
DEFAULT_TARGET: Target = TARGETS[0]
"""It keeps the layers of the model apart, so that rules of a quantization can name them."""
REWRITE_FEW_BITS: tuple[Target, ...] = ("contrib",)
"""The targets whose passes rewrite products with few-bit weights, so that they run again after a
quantization."""

OPSETS = range(18, 27)
"""The opsets that lowerings support."""
# The first opset with Attention, RMSNormalization and RotaryEmbedding, the ops of a transformer. A
# newer default would exclude onnxruntime 1.23, which runs these (`releases.NEWEST_OPSET`).
DEFAULT_OPSET = 23
PORTABLE_OPSET = OPSETS[0]
PORTABLE_IR_VERSION = 8
"""The IR version of ONNX 1.13, the release that introduced opset 18."""


def chosen_opset(
    opset_version: int | None,
    minimum_onnxruntime: str | None,
    target: Target = DEFAULT_TARGET,
) -> int:
    """Return the opset to lower at.

    Args:
        opset_version: The requested opset; None selects 23, or less for an older onnxruntime.
        minimum_onnxruntime: The oldest onnxruntime that must run the file; None for any.
        target: What will run the file; for ``"portable"`` and execution providers, None
            selects opset 18.

    Raises:
        StagingError: If the opset is not 18 to 26, or that onnxruntime does not support it.
    """
    if opset_version is not None and opset_version not in OPSETS:
        raise StagingError(
            f"opset_version must be {OPSETS[0]} to {OPSETS[-1]}, got {opset_version}"
        )
    newest = OPSETS[-1] if minimum_onnxruntime is None else newest_opset(minimum_onnxruntime)
    if opset_version is None:
        older = target == "portable" or target in PROVIDER_TARGETS
        return min(PORTABLE_OPSET if older else DEFAULT_OPSET, newest)
    if opset_version > newest:
        raise StagingError(
            f"opset {opset_version} needs onnxruntime {oldest_onnxruntime(opset_version)}, but "
            f"minimum_onnxruntime is {minimum_onnxruntime}, which takes opset {newest}\n"
            "  leave one of the two out"
        )
    return opset_version
