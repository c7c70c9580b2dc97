"""What is run on providers: the architectures of docs/models.md, and the decoders as folders."""

from __future__ import annotations

from dataclasses import dataclass

from coreai_onnx.passes import Target
from tests.models.architecture import Architecture
from tests.models.generators import GENERATORS, RWKV
from tests.models.sequence_to_sequence import SEQUENCE_TO_SEQUENCE, SWITCH
from tests.models.zoo import ARCHITECTURES

MODEL, FOLDER, HALF = "model", "folder", "float16 folder"
NATIVE, BROWSER = PLACES = "native", "browser"
"""The onnxruntime of the provider; onnxruntime-web or transformers.js in Chromium."""
MODELS = {one.name: one for one in ARCHITECTURES}
FOLDERS = {**GENERATORS, **{one.name: one for one in (RWKV, *SEQUENCE_TO_SEQUENCE, SWITCH)}}
"""Language models of docs/language_models.md by name."""
CASES = (*((MODEL, name) for name in MODELS), *((FOLDER, name) for name in FOLDERS))
CUDA_CASES = (*CASES, *((HALF, name) for name in FOLDERS))
"""SwiftShader has no float16, in which CUDA has GroupQueryAttention."""


@dataclass(frozen=True)
class Job:
    """A case for a target, in one place.

    Attributes:
        kind: ``MODEL``, ``FOLDER`` or ``HALF``.
        name: The name of the architecture.
        target: As for ``optimize``.
        place: ``NATIVE`` or ``BROWSER``.
    """

    kind: str
    name: str
    target: Target
    place: str

    @property
    def on_cuda(self) -> bool:
        """Whether the job is for CUDA, which has no browser."""
        return self.target == "cuda"

    @property
    def key(self) -> tuple[str, ...]:
        """What the job is shown and kept as."""
        return self.kind, self.name, self.target, self.place


def architecture(kind: str, name: str) -> Architecture:
    """Return the architecture of a case."""
    return (MODELS if kind == MODEL else FOLDERS)[name]
