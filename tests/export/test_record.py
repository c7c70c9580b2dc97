"""Records of exported programs."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from coreai_onnx.errors import LoadError, SaveError, StagingError
from coreai_onnx.export.record import ExportRecord
from coreai_onnx.program import OnnxProgram
from tests.debugging.small_reference import Small, converted
from tests.support.tolerances import assert_close


def test_a_record_comes_back_with_names_and_inputs(tmp_path: Path) -> None:
    record = converted().record()
    loaded = ExportRecord.load(record.save(tmp_path / "r.pt2"))
    names = [[node.name for node in r.program.graph.nodes] for r in (record, loaded)]
    assert names[0] == names[1]
    assert record.example is not None
    assert loaded.example is not None
    (x,), kwargs = loaded.example
    assert not kwargs
    assert_close(x, record.example[0][0])
    assert_close(loaded.program.module()(x), Small().eval()(x))


def test_a_failure_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record = converted().record()
    record.save(tmp_path / "r.pt2")
    before = (tmp_path / "r.pt2").read_bytes()

    def fail(*_: object) -> None:
        raise RuntimeError("disk")

    monkeypatch.setattr(torch.export, "save", fail)
    with pytest.raises(SaveError, match="disk"):
        record.save(tmp_path / "r.pt2")
    assert (tmp_path / "r.pt2").read_bytes() == before


def test_what_is_not_a_record(tmp_path: Path) -> None:
    (tmp_path / "r.pt2").write_bytes(b"no")
    with pytest.raises(LoadError, match="is not a record"):
        ExportRecord.load(tmp_path / "r.pt2")
    with pytest.raises(LoadError, match="is not a regular file"):
        ExportRecord.load("/dev/zero")
    converted().save(tmp_path / "m.onnx")
    with pytest.raises(StagingError, match="there is no record of main"):
        OnnxProgram.load(tmp_path / "m.onnx").record()
