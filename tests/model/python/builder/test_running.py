"""``call(...)`` of a written package."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from coreai_onnx import OnnxProgram
from coreai_onnx.model.python.package import imported
from tests.support.small_models import (
    add_model,
    counter_model,
    linear_model,
    linear_weights,
    parse,
    phase_model,
)
from tests.support.tolerances import assert_close


def test_call_takes_arrays_in_order(tmp_path: Path) -> None:
    folder = OnnxProgram({"main": linear_model()}).to_python(tmp_path / "written")
    weights = linear_weights()
    x = np.ones((3, 8), np.float32)
    with imported(folder) as package:
        expected = torch.from_numpy(x @ weights["weight"] + weights["bias"])
        assert_close(torch.from_numpy(package.call(x)), expected)
        assert_close(package.call(torch.from_numpy(x).requires_grad_()), expected)


def test_states_are_inputs_and_outputs(tmp_path: Path) -> None:
    folder = OnnxProgram({"main": counter_model()}).to_python(tmp_path / "written")
    one = np.ones(1, np.float32)
    with imported(folder) as package:
        assert [float(item[0]) for item in package.call(one)] == [1.0, 2.0]
        assert [float(item[0]) for item in package.call(one, count=one * 5)] == [5.0, 6.0]


def test_complex_inputs_and_outputs(tmp_path: Path) -> None:
    folder = OnnxProgram({"main": phase_model()}).to_python(tmp_path / "written")
    z = torch.tensor([1 + 2j, 3 - 1j])
    with imported(folder) as package:
        found = package.call(z)
    assert all(item.dtype == torch.complex64 for item in found)
    assert found[0].shape == (2,)


def test_strings_and_sequences(tmp_path: Path) -> None:
    text = """<ir_version: 10, opset_import: ["": 21]>
    agraph (string[n] s, float[n] x) => (string[n] t, seq(float[n]) xs)
    { t = Identity(s)  xs = SequenceConstruct(x, x) }"""
    folder = OnnxProgram({"main": parse(text)}).to_python(tmp_path / "written")
    with imported(folder) as package:
        found, sequence = package.call(np.array(["a", "bc"], object), np.ones(2, np.float32))
    assert found.tolist() == ["a", "bc"]
    assert [item.tolist() for item in sequence] == [[1.0, 1.0]] * 2


def test_other_arguments_are_refused(tmp_path: Path) -> None:
    folder = OnnxProgram({"main": add_model({"seq": {"max": 4}})}).to_python(tmp_path / "written")
    ids, mask = np.ones((2, 3), np.int64), np.ones((2, 3), np.float32)
    wrong: list[tuple[tuple[Any, ...], str]] = [
        ((ids, mask, mask), "3 arguments are given, but the model takes 2: ids, mask"),
        ((ids,), "missing arguments: mask"),
        ((ids, mask.astype(np.float64)), r"mask is float64, but the model takes float32\[batch"),
        ((ids, mask[:1]), r"mask has shape \[1, 3\], .* with batch = 2, as in another argument"),
        ((np.ones((2, 5), np.int64), mask), "with seq at most 4"),
    ]
    with imported(folder) as package:
        for arguments, message in wrong:
            with pytest.raises(ValueError, match=message):
                package.call(*arguments)
        assert package.call(ids, mask=mask).tolist() == [[2.0] * 3] * 2


def test_a_session_is_made_once_for_all_threads(tmp_path: Path) -> None:
    folder = OnnxProgram({"main": linear_model()}).to_python(tmp_path / "written")
    sessions, barrier = [], threading.Barrier(4)

    def first_call() -> None:
        barrier.wait()
        sessions.append(package.call.session)

    with imported(folder) as package:
        threads = [threading.Thread(target=first_call) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(sessions) == 4
    assert len(set(map(id, sessions))) == 1
