"""Tests of keeps torch, transformers and torchao from printing what does not help a user."""

from __future__ import annotations

import subprocess
import sys
import threading
import warnings

import pytest
import torch

from coreai_onnx import convert
from coreai_onnx.errors import ExportError
from coreai_onnx.export.compat.torch_names import export_trace
from coreai_onnx.export.compat.torch_warnings import ignored, without_graph_dumps


def test_only_its_message_is_ignored() -> None:
    with ignored("The tensor .* x"):
        warnings.warn("The tensor attribute x", UserWarning, stacklevel=1)
        with pytest.warns(UserWarning, match="another"):
            warnings.warn("another", UserWarning, stacklevel=1)
    with pytest.warns(UserWarning, match="The tensor"):
        warnings.warn("The tensor attribute x", UserWarning, stacklevel=1)


def test_filters_that_others_add_meanwhile_stay() -> None:
    before = list(warnings.filters)
    with ignored("ours"):
        with ignored("ours"):
            warnings.filterwarnings("ignore", "theirs")
        warnings.warn("ours", UserWarning, stacklevel=1)
    assert warnings.filters[1:] == before
    assert len(warnings.filters) == len(before) + 1
    warnings.warn("theirs", UserWarning, stacklevel=1)


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


def test_torchao_is_imported_in_silence() -> None:
    program = (
        "import sys; from coreai_onnx.export.compat.torch_warnings import import_torchao; "
        "import_torchao(); assert 'torchao.quantization' in sys.modules"
    )
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stderr == ""


def test_generation_imports_transformers_in_silence() -> None:
    program = "import sys, coreai_onnx.huggingface.generation; assert 'transformers' in sys.modules"
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stderr == ""
