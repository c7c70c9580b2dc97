"""How a model is opened in onnxruntime."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from coreai_onnx.errors import SessionError
from coreai_onnx.runtime.custom_ops import CustomOps

MAX_THREADS = 1024
"""Maximum number of threads: onnxruntime starts all of them before it reads the model."""


@dataclass(frozen=True)
class SessionSettings:
    """The settings of `coreai_onnx.session` that hold for all entrypoints of a program.

    Raises:
        SessionError: If ``threads`` is out of range.
    """

    kernels: bool | None = None
    threads: int | None = None
    prepack: bool | None = None
    profile: bool = False
    custom_ops: Sequence[CustomOps] = ()

    def __post_init__(self) -> None:
        """Check the number of threads."""
        threads = self.threads
        if threads is not None and not (isinstance(threads, int) and 1 <= threads <= MAX_THREADS):
            raise SessionError(
                f"threads={threads!r}; give a number from 1 to {MAX_THREADS}, "
                "or None to let onnxruntime choose"
            )
