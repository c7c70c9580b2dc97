"""Run one case on WebGPU, in Chromium or on CUDA, and compare with the CPU on the same file."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

import coreai_onnx
from coreai_onnx.huggingface import export_model
from coreai_onnx.huggingface.generation import LanguageModel
from coreai_onnx.targets.contrib import default_padding
from tests.models.generators import PROMPTS, padded, with_weights_of_16_bits
from tests.support.tolerances import assert_close
from tools.operators.measuring import MISMATCH, PASS
from tools.providers.cases import HALF, MODEL, Job, architecture
from tools.providers.tracing import CUDA, WEBGPU, Placement, sessions_on

if TYPE_CHECKING:
    from tools.providers.browser import Chromium

FILES = Path(__file__).resolve().parents[2] / "build" / "providers"
LENGTH = 16
"""Tokens to generate."""
ENCODERS = ("t5", "bart", "switch", "whisper")
PROMPT = [5, 9, 17, 33, 8]
EQUALLY_LONG = ([5, 9, 17], [4, 101, 33], [77, 6, 12])
"""Token ids of a batch for files without padding."""
_NO_TYPE = "knows no model of this type"
NOT_IN_TRANSFORMERS_JS = {
    "whisper": "takes audio, and the prompt is a spectrogram",
    "falcon": "takes one tensor for keys and values if multi_query is set",
    **dict.fromkeys(("mixtral", "mamba2", "mamba", "falcon_mamba", "jamba"), _NO_TYPE),
    **dict.fromkeys(("recurrent_gemma", "openai_gpt", "dbrx", "glm4", "granite_moe"), _NO_TYPE),
    **dict.fromkeys(("jetmoe", "gemma3n", "gemma4", "zamba", "zamba2", "rwkv"), _NO_TYPE),
    **dict.fromkeys(("phi4_multimodal", "switch"), _NO_TYPE),
}
"""Folders that run in onnxruntime-web alone, and why."""


class Subject:
    """A case as a file or a folder, with its inputs and what the CPU returns for them."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self._architecture = architecture(job.kind, job.name)
        self.place = FILES / job.target / job.kind / job.name
        shutil.rmtree(self.place, ignore_errors=True)
        self.place.parent.mkdir(parents=True, exist_ok=True)
        if job.kind == MODEL:
            self._convert()
        else:
            self._export()

    def _convert(self) -> None:
        one = self._architecture
        # A program that torch exported alone sorts and counts the rows of experts.
        program = coreai_onnx.convert(
            one.module(),
            kwargs=one.arguments(*one.sizes[0]),
            dynamic_shapes=dict(one.dynamic),
            prefer_deferred_runtime_asserts_over_guards=one.deferred,
            optimize=False,
        )
        self.place.mkdir()
        program.optimize(target=self.job.target).save(self.file)

    def _export(self) -> None:
        model = with_weights_of_16_bits(self._architecture.module())
        # transformers.js reads it from the configuration of the model, too.
        for settings in (model.generation_config, model.config):
            settings.forced_eos_token_id = None
        export_model(
            model,
            self.place,
            target=self.job.target,
            dtype=self._dtype,
            check=False,
        )

    @property
    def _dtype(self) -> str:
        return "float16" if self.job.kind == HALF else "float32"

    @property
    def file(self) -> Path:
        """The model of an architecture."""
        return self.place / "model.onnx"

    @cached_property
    def batches(self) -> list[dict[str, np.ndarray]]:
        """Inputs of an architecture at each size, by the names of the file."""
        sizes = self._architecture.sizes
        arguments = [self._architecture.arguments(*size) for size in sizes]
        names = coreai_onnx.session(self.file, kernels=False).ort.get_inputs()
        kept = {one.name for one in names}
        return [{n: x.numpy() for n, x in given.items() if n in kept} for given in arguments]

    @cached_property
    def expected(self) -> list[list[np.ndarray]]:
        """Outputs on the CPU at each size."""
        session = coreai_onnx.session(self.file, kernels=False)
        return [session.ort.run(None, batch) for batch in self.batches]

    def difference(self, actual: Sequence[Sequence[np.ndarray]]) -> dict[str, Any]:
        """Compare outputs at each size with the CPU's."""
        found: dict[str, Any] = {"status": PASS, "error": _error(actual, self.expected)}
        for size, a, e in zip(self._architecture.sizes, actual, self.expected, strict=True):
            try:
                assert_close(list(a), e, exception=self._architecture.exception)
            except AssertionError as error:
                detail = f"size {size}: {' '.join(str(error).split())}"
                return {**found, "status": MISMATCH, "detail": detail}
        return found

    def tokens(self) -> list[list[list[int]]]:
        """Return the tokens of each batch of a folder, where sessions open today."""
        model = LanguageModel.open(self.place, kernels=False)
        options: Any = {"max_new_tokens": LENGTH, "stop_ids": ()}
        found = [
            model.generate(ids, attention_mask=mask, **options) for ids, mask in self._prompts()
        ]
        return [np.asarray(tokens).tolist() for tokens in found]

    def _prompts(self) -> list[tuple[Any, Any]]:
        if self.job.name == "rwkv":  # it takes no mask
            return [(torch.tensor([PROMPT]), None)]
        if self.job.name not in ENCODERS:
            is_unpadded = default_padding(self.job.target, self._dtype) == "none"
            return [padded(PROMPTS[:1]), padded(EQUALLY_LONG if is_unpadded else PROMPTS)]
        found = []
        for batch in (1, 3):
            given = self._architecture.arguments(batch, 9)
            name = "input_features" if "input_features" in given else "input_ids"
            found.append((given[name], given.get("attention_mask")))
        return found


def run_natively(subject: Subject) -> dict[str, Any]:
    """Run a case in onnxruntime; returns the status and where the nodes of a call ran."""
    sessions = sessions_on(CUDA if subject.job.on_cuda else WEBGPU)
    if subject.job.kind == MODEL:
        _ = subject.expected  # on the CPU, before sessions open on the provider
        with sessions as opened:
            session = coreai_onnx.session(subject.file, kernels=False)
            actual = [session.ort.run(None, batch) for batch in subject.batches]
        calls = {"run": opened[0].placements()[0]}
        return {**subject.difference(actual), "calls": _as_json(calls)}
    wanted = subject.tokens()
    with sessions as opened:
        tokens = subject.tokens()
    runs = [one.placements() for one in opened[: 2 if subject.job.name in ENCODERS else 1]]
    calls = {"prefill": runs[0][0], "decode": runs[0][1]}
    if len(runs) > 1:
        calls["encoder"] = runs[1][0]
    return {**_same(tokens, wanted), "calls": _as_json(calls)}


def run_in_browser(subject: Subject, chromium: Chromium) -> dict[str, Any]:
    """Run a case in Chromium; returns the status, and the number of nodes on each provider."""
    job = subject.job
    chromium.release()  # what a case that failed left open
    if job.kind == MODEL:
        actual = [chromium.run(subject.file, batch) for batch in subject.batches]
        return {**subject.difference(actual), "placed": chromium.placed()}
    if job.name in NOT_IN_TRANSFORMERS_JS:
        wanted = subject.tokens()
        with chromium.sessions():
            tokens = subject.tokens()
        return {**_same(tokens, wanted), "note": NOT_IN_TRANSFORMERS_JS[job.name]}
    cls = "AutoModelForSeq2SeqLM" if job.name in ENCODERS else "AutoModelForCausalLM"
    row = chromium.generate(cls, subject.place, PROMPT, LENGTH)
    model = LanguageModel.open(subject.place, kernels=False)
    expected = model.generate(torch.tensor([PROMPT]), max_new_tokens=LENGTH, stop_ids=())
    return _same([[row]], [np.asarray(expected).tolist()])


def _same(tokens: Any, wanted: Any) -> dict[str, Any]:
    if tokens == wanted:
        return {"status": PASS}
    pairs = [pair for both in zip(tokens, wanted, strict=True) for pair in zip(*both, strict=True)]
    differing = [
        f"token {at} of prompt {index} is {token}, expected {expected}"
        for index, (sequence, other) in enumerate(pairs)
        for at, (token, expected) in enumerate(zip(sequence, other, strict=False))
        if token != expected
    ]
    return {"status": MISMATCH, "detail": differing[0] if differing else "another length"}


def _as_json(calls: dict[str, Placement]) -> dict[str, Any]:
    return {call: placement.as_json() for call, placement in calls.items()}


def _error(actual: Any, expected: Any) -> float:
    """Return the largest difference of floating-point outputs."""
    worst = 0.0
    pairs = (pair for run in zip(actual, expected, strict=True) for pair in zip(*run, strict=True))
    for a, e in pairs:
        if a.shape == e.shape and e.dtype.kind == "f" and e.size:
            worst = max(worst, float(np.abs(a.astype(np.float64) - e).max()))
    return worst
