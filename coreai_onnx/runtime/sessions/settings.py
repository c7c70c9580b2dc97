"""How a model is opened in onnxruntime."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any, Protocol

import onnxruntime as ort

from coreai_onnx.errors import SessionError
from coreai_onnx.runtime.libraries.library import CustomOps, kernels_built, register_kernels
from coreai_onnx.targets.providers import Choice, on_cpu

MAX_THREADS = 1024
"""Maximum number of threads: onnxruntime starts all of them before it reads the model."""

_EXACT_FACTORS = "session.qdq_matmulnbits_accuracy_level", "1"
"""onnxruntime makes a MatMulNBits of a product with a quantized weight. By default its accuracy
level is 4, which rounds the other factor to 8 bits, although the file does not say so."""


class Transport(Protocol):
    """What the kernels of ranks on several hosts call: ``coreai_onnx.scale.Hosts``."""

    @property
    def address(self) -> int:
        """The address of a ``RankTransport`` of ``custom_ops/memory/rank_transport.h``."""
        ...


@dataclass(frozen=True)
class SessionSettings:
    """The settings of `coreai_onnx.session` that hold for all entrypoints of a program.

    ``configure`` changes onnxruntime's options before a model is opened. Such a session has
    onnxruntime's own arena instead of huge pages: only the arena counts the memory in use.

    Raises:
        SessionError: If ``threads`` is out of range; if ``deterministic``, ``float32_tiles`` or
            ``packed_weights`` or ``group`` is set without kernels or with providers; or if the
            first two are set together.
    """

    kernels: bool | None = None
    threads: int | None = None
    prepack: bool | None = None
    packed_weights: str | PathLike[str] | None = None
    profile: bool = False
    custom_ops: Sequence[CustomOps] = ()
    low_memory: bool = False
    deterministic: bool = False
    float32_tiles: bool = False
    adapters: bool = True
    group: str | Transport | None = None
    timeout: float | None = None
    providers: Choice | Sequence[Choice] | None = ()
    configure: Callable[[ort.SessionOptions], None] | None = None

    def __post_init__(self) -> None:
        """Check the number of threads."""
        threads = self.threads
        if threads is not None and not (isinstance(threads, int) and 1 <= threads <= MAX_THREADS):
            raise SessionError(
                f"threads={threads!r}; give a number from 1 to {MAX_THREADS}, "
                "or None to let onnxruntime choose"
            )
        # Tiles multiply calls of many rows, with other bits than those of few rows.
        if self.deterministic and self.float32_tiles:
            raise SessionError("deterministic=True and float32_tiles=True exclude each other")
        for name in ("deterministic", "float32_tiles"):
            if getattr(self, name) and (self.kernels is False or not on_cpu(self.providers)):
                raise SessionError(f"{name}=True needs the kernels, and no execution provider")
        # Any other execution runs the bodies, which have no parts of other ranks.
        if self.group is not None and (self.kernels is False or not on_cpu(self.providers)):
            raise SessionError(f"group={self.group!r} needs the kernels, and no execution provider")
        if self.packed_weights is None:
            return
        if self.kernels is False or not on_cpu(self.providers):
            raise SessionError("packed_weights needs the kernels, and no execution provider")

    @property
    def group_entries(self) -> dict[str, str]:
        """The entries of onnxruntime's options that say where other ranks are."""
        if self.group is None:
            return {}
        if isinstance(self.group, str):
            entries = {"coreai.group": self.group}
        else:
            entries = {"coreai.group_transport": hex(self.group.address)}
        if self.timeout is not None:
            # Before the session's own, whose error does not say which rank is late.
            entries["coreai.group_timeout"] = str(0.9 * self.timeout)
        return entries


def session_options(
    settings: SessionSettings,
    op_types: list[str] | None,
    *,
    kernels: bool | None,
    prepacks: bool,
    reads_weights: bool,
) -> tuple[ort.SessionOptions, bool]:
    """Return onnxruntime's options for a model, and whether the kernels are registered.

    Args:
        settings: The settings of the session.
        op_types: The composites of the model; None if they are not known.
        kernels: As for `register_kernels`.
        prepacks: Whether onnxruntime packs weights.
        reads_weights: Whether kernels read weights where they are.
    """
    options = ort.SessionOptions()
    # Failures are raised as errors, and onnxruntime's log prints names of the file unescaped.
    options.log_severity_level = 4
    if settings.threads is not None:
        options.intra_op_num_threads = settings.threads
    options.enable_mem_reuse = not settings.low_memory
    # With patterns, onnxruntime 1.31 reserves one block as large as all weights together, also
    # of weights that it maps. Linux refuses a block that is larger than the memory.
    options.enable_mem_pattern = not settings.low_memory and not reads_weights
    entries = dict([_EXACT_FACTORS])
    if settings.deterministic:
        entries["coreai.deterministic"] = "1"
        options.use_deterministic_compute = True
    if settings.float32_tiles:
        entries["coreai.float32_tiles"] = "1"
    if not prepacks:
        entries["session.disable_prepacking"] = "1"
        if reads_weights:  # kernels neither
            entries["coreai.read_weights"] = "1"
    elif settings.configure is None:  # a mapped file has no huge pages
        # 27.7 instead of 32.6 ms for a token with a static cache: "Huge pages" in
        # docs/internals/performance_log.md.
        entries["coreai.huge_pages"] = "1"
    if settings.packed_weights is not None and not reads_weights:
        entries["coreai.packed_weights"] = str(Path(settings.packed_weights).absolute())
    entries |= settings.group_entries
    for name, value in entries.items():
        options.add_session_config_entry(name, value)
    return options, register_kernels(options, op_types, kernels=kernels)


def executions_on(
    provider: Choice | None, *, kernels: bool | None, **settings: Any
) -> dict[str, dict[str, Any]]:
    """Return the settings of a session of ``"bodies"``, and perhaps of one of ``"kernels"``.

    Args:
        provider: The execution provider of both.
        kernels: Whether there is one of kernels; None if they are built, and no node runs elsewhere
            than on the CPU.
        **settings: Further settings of both.
    """
    if kernels is None:
        kernels = kernels_built() and on_cpu(provider)
    shared = {"providers": provider, **settings}
    bodies = {"bodies": {"kernels": False, **shared}}
    return bodies | ({"kernels": {"kernels": True, **shared}} if kernels else {})


def checked_timeout(seconds: float | None) -> float | None:
    """Return a maximum time of a run in seconds.

    Raises:
        SessionError: It is not a positive number.
    """
    # threading.Timer raises OverflowError in its thread for a longer time.
    longest = threading.TIMEOUT_MAX
    is_number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
    if seconds is not None and not (is_number and 0 < seconds <= longest):
        raise SessionError(f"timeout={seconds!r}; give a number of seconds greater than 0, or None")
    return seconds
