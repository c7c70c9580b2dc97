"""A failed export prints no graph, and other threads print as before."""

from __future__ import annotations

import sys
import threading

import pytest
import torch

from coreai_onnx import convert
from coreai_onnx.errors import ExportError
from coreai_onnx.export.compat.graph_dumps import without_graph_dumps
from coreai_onnx.export.compat.torch_names import export_trace


def branches(x: torch.Tensor) -> torch.Tensor:
    return x if x.sum() > 0 else -x


def test_the_graph_of_a_failed_export_is_not_printed(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ExportError, match=r"torch\.cond") as raised:
        convert(branches, (torch.ones(3),))
    assert capfd.readouterr() == ("", "")
    assert "def forward" in raised.value.__cause__.partial_fx_graph  # type: ignore[union-attr]


def test_what_torch_itself_prints_is_what_is_left_out(capfd: pytest.CaptureFixture[str]) -> None:
    class Branches(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return branches(x)

    with pytest.raises(RuntimeError):
        torch.export.export(Branches(), (torch.ones(3),))
    assert "def forward" in capfd.readouterr().err


def test_other_threads_and_other_files_are_printed_to(capfd: pytest.CaptureFixture[str]) -> None:
    with without_graph_dumps():
        show = vars(export_trace)["print"]
        show("graph", file=sys.stderr)
        show("to stdout")
        thread = threading.Thread(target=show, args=("theirs",), kwargs={"file": sys.stderr})
        thread.start()
        thread.join()
    assert "print" not in vars(export_trace)
    assert capfd.readouterr() == ("to stdout\n", "theirs\n")
