"""Reports of the stages of a conversion."""

from __future__ import annotations

import threading
from pathlib import Path

import torch

from coreai_onnx.conversion import convert
from coreai_onnx.stages import begin, reported_to


def test_the_stages_of_a_conversion_in_their_order(tmp_path: Path) -> None:
    stages: list[str] = []
    with reported_to(stages.append):
        convert(torch.nn.ReLU(), (torch.ones(2),)).save(tmp_path / "m.onnx")
    assert stages == ["export", "lower", "optimize", "save"]
    begin("export")
    assert len(stages) == 4, "the block is over"


def test_another_thread_is_not_reported() -> None:
    stages: list[str] = []
    with reported_to(stages.append):
        thread = threading.Thread(target=begin, args=("export",))
        thread.start()
        thread.join()
    assert stages == []
