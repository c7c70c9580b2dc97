"""Sessions of coreai_onnx compute in a page, and keep the states that it returns."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import coreai_onnx
from tools.providers.browser import Chromium


class Total(torch.nn.Module):
    """Adds its inputs up."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("total", torch.ones(1))

    def forward(self, x):
        self.total.add_(x)
        return -self.total


def test_runs_and_states_are_those_of_the_page(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "model.onnx"
    coreai_onnx.convert(Total(), (torch.ones(1),)).save(file)
    session = coreai_onnx.session(file, kernels=False)
    names = [one.name for one in session.ort.get_outputs()]
    (state,), (output,) = session.states, [one.name for one in session.outputs]
    calls = []

    def run(self, path, inputs):
        del self
        total = inputs.get(state, np.ones(1, np.float32))  # the file has the first one
        calls.append((path, total.tolist()))
        product = total * inputs["x"]  # not what the CPU computes
        return [product + 0.5 if name == output else product for name in names]

    monkeypatch.setattr(Chromium, "run", run)
    x = np.array([3.0], np.float32)
    with Chromium().sessions():
        found = [session.run(x)[output].tolist() for _ in range(2)]
    assert found == [[3.5], [9.5]]
    assert calls == [(file, [1.0]), (file, [3.0])]
    assert session.run(x)[output].tolist() == [-12.0]
