"""`coreai_onnx.session`, which opens a model in onnxruntime."""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike
from typing import TYPE_CHECKING

from coreai_onnx.runtime.libraries.library import CustomOps
from coreai_onnx.runtime.sessions.entrypoints import HasModels
from coreai_onnx.runtime.sessions.session import Session
from coreai_onnx.runtime.sessions.settings import Transport
from coreai_onnx.targets.providers import Choice, chosen_providers

if TYPE_CHECKING:  # see prepared.py
    from coreai_onnx.runtime.sessions.sources import Source


def session(
    path_or_program: Source | HasModels,
    *,
    entrypoint: str | None = None,
    kernels: bool | None = None,
    threads: int | None = None,
    timeout: float | None = None,
    prepack: bool | None = None,
    packed_weights: str | PathLike[str] | None = None,
    profile: bool = False,
    custom_ops: Sequence[CustomOps] = (),
    low_memory: bool = False,
    deterministic: bool = False,
    float32_tiles: bool = False,
    adapters: bool = True,
    group: str | Transport | None = None,
    provider: Choice | None = None,
    providers: Sequence[Choice] = (),
) -> Session:
    """Open a model in onnxruntime.

    Args:
        path_or_program: A ``.onnx`` file, a folder of `OnnxProgram.save_bundle`, or in memory: an
            ``OnnxProgram``, ``onnx.ModelProto``, ``onnx_ir.Model`` or bytes.
        entrypoint: The entrypoint to run; None is ``main``, or else the first.
        kernels: Whether composites run on the native kernels, which run on the CPU, or on their
            function bodies. None uses kernels if they are built and the CPU is the only provider.
        threads: Threads per operator, 1 to 1024; None lets onnxruntime choose.
        timeout: Maximum seconds of a run, also of an endless ``Loop``; None means no limit.
        prepack: Whether entrypoints hold weights in the layout of products, which is faster. Others
            read them from the mapped file and may exceed memory (``docs/large_models.md``). None is
            False for over four fifths of it, and in a bundle for products of onnxruntime.
        packed_weights: A file that all processes map for their packed weights (``docs/files.md``).
        profile: Whether to record the time of each node, for `Session.profile`.
        custom_ops: Custom op libraries: files, or what `coreai_onnx.kernel` returned.
        low_memory: Whether each result is released at once; see `coreai_onnx.memory_plan`.
        deterministic: Whether a row has the same bits in any batch; see ``docs/determinism.md``.
        float32_tiles: Whether float32 products run on AMX tiles; see ``docs/performance.md``.
        adapters: Whether inputs for adapters of LoRA are kept; without them, they cost nothing.
        group: What connects a model's ranks: a name of theirs, or `coreai_onnx.scale.Hosts`.
        provider: A provider before the CPU, perhaps with options: ``("cuda", {"device_id": 1})``.
        providers: Several providers, in order of preference, after ``provider``.

    Raises:
        KernelsNotBuiltError: If ``kernels=True`` without a library.
        SessionError: If the model is missing, broken, for a newer onnxruntime, not deterministic
            or rejected by onnxruntime, the entrypoint is missing, or a setting is out of range.
        ProviderError: If a provider is not available; the message says which are.

    Warns:
        RuntimeWarning: If a provider takes no node, or bodies run as kernels cannot be loaded.
    """
    return Session(
        path_or_program,
        entrypoint=entrypoint,
        kernels=kernels,
        threads=threads,
        timeout=timeout,
        prepack=prepack,
        packed_weights=packed_weights,
        profile=profile,
        custom_ops=custom_ops,
        low_memory=low_memory,
        deterministic=deterministic,
        float32_tiles=float32_tiles,
        adapters=adapters,
        group=group,
        providers=(*([] if provider is None else [provider]), *chosen_providers(providers).items()),
    )
