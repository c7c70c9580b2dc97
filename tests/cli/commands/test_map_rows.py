"""``coreai-onnx map``."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from coreai_onnx.cli import main
from coreai_onnx.cli.commands import map_rows
from coreai_onnx.errors import CommandError
from coreai_onnx.program import OnnxProgram
from coreai_onnx.scale import Predictor
from tests.support.small_models import linear_model, parse
from tests.support.tolerances import assert_close

LOOKUP = """<ir_version: 10, opset_import: ["": 21]>
agraph (int64[n] i) => (float[n, 2] row) <float[3, 2] table = {0, 1, 2, 3, 4, 5}> {
    row = Gather(table, i)
}"""
ROWS = 250


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a model and rows in groups of another size than the parts."""
    monkeypatch.chdir(tmp_path)
    OnnxProgram({"main": linear_model()}).save("model.onnx")
    x = np.random.default_rng(0).standard_normal((ROWS, 8)).astype(np.float32)
    column = pa.FixedSizeListArray.from_arrays(pa.array(x.reshape(-1)), 8)
    table = pa.table({"features": column, "n": range(ROWS)})
    pq.write_table(table, "rows.parquet", row_group_size=70)
    return tmp_path


WORDS = ["map", "model.onnx", "rows.parquet", "-o", "out.parquet", "--input", "x=features"]


@pytest.mark.parametrize(
    "more",
    [[], ["--part-size", "60"], ["--part-size", "60", "--batch-size", "7"]],
    ids=["one part", "parts", "small batches"],
)
def test_rows(folder: Path, more: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*WORDS, *more]) == 0
    assert capsys.readouterr().out.startswith(f"{ROWS} rows in ")
    result, rows = pq.read_table("out.parquet"), pq.read_table("rows.parquet")
    assert result.column_names == ["features", "n", "y"]
    assert result["n"].to_pylist() == list(range(ROWS))
    want = Predictor("model.onnx", inputs={"x": "features"}, keep=[])(rows)
    assert_close(np.array(result["y"].to_pylist()), np.array(want["y"].to_pylist()))
    assert not (folder / "out.parquet.parts").exists()


@pytest.mark.slow
def test_workers_and_names_of_columns(folder: Path) -> None:
    names = ["--result", "y=score", "--keep", "n"]
    assert main([*WORDS, *names, "--workers", "2", "--part-size", "60"]) == 0
    result = pq.read_table("out.parquet")
    assert result.column_names == ["n", "score"]
    assert result["n"].to_pylist() == list(range(ROWS))


@pytest.mark.parametrize(
    ("keep", "read"),
    [([], ["features", "n", "long"]), (["--keep", "n"], ["features", "n"])],
    ids=["all", "one"],
)
def test_columns_that_nothing_needs_are_not_read(
    folder: Path, monkeypatch: pytest.MonkeyPatch, keep: list[str], read: list[str]
) -> None:
    table = pq.read_table("rows.parquet")
    pq.write_table(table.append_column("long", table["n"]), "rows.parquet")
    columns: list[list[str]] = []
    read_row_group = pq.ParquetFile.read_row_group

    def recorded(file: pq.ParquetFile, index: int, **options: Any) -> pa.Table:
        columns.append(options["columns"])
        return read_row_group(file, index, **options)

    monkeypatch.setattr(pq.ParquetFile, "read_row_group", recorded)
    assert main([*WORDS, *keep]) == 0
    assert columns == [read]
    assert pq.read_table("out.parquet").column_names == [*(keep[1:] or read), "y"]


def test_an_interrupted_job_goes_on(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made: list[int] = []
    make = map_rows._make_part

    def interrupted(job: Any, index: int) -> Any:
        made.append(index)
        if len(made) == 3:
            raise KeyboardInterrupt
        return make(job, index)

    monkeypatch.setattr(map_rows, "_make_part", interrupted)
    words = [*WORDS, "--part-size", "60"]
    assert main(words) == 130
    assert not Path("out.parquet").exists()
    assert main([*words, "--keep", "n"]) == 2
    assert "has parts of another job: remove it" in capsys.readouterr().err
    assert main(words) == 0
    assert made == [0, 1, 2, 2, 3, 4]
    assert pq.read_table("out.parquet")["n"].to_pylist() == list(range(ROWS))


@pytest.fixture
def lookup(folder: Path) -> list[str]:
    OnnxProgram({"main": parse(LOOKUP)}).save("lookup.onnx")
    indices = [0, 1, 2, 9, 2, None, 1]
    pq.write_table(pa.table({"i": indices}), "indices.parquet")
    return ["map", "lookup.onnx", "indices.parquet", "-o", "out.parquet"]


def test_a_row_that_fails_stops_the_job(
    lookup: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(lookup) == 2
    told = capsys.readouterr().err
    assert "error: row 3: " in told
    assert "idx=9 must be within the inclusive range [-3,2]" in told
    assert not list(Path().glob("out.parquet*"))


@pytest.mark.parametrize("size", ["100", "4", "1"])
def test_rows_that_fail_are_kept(
    lookup: list[str], size: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*lookup, "--on-error", "keep", "--part-size", size]) == 1
    out = capsys.readouterr().out
    assert "2 rows failed:\n  row 3: " in out
    assert "row 5: the column 'i' is null" in out
    result = pq.read_table("out.parquet")
    assert result["row"].to_pylist() == [[0, 1], [2, 3], [4, 5], None, [4, 5], None, [2, 3]]
    assert [text is not None for text in result["error"].to_pylist()] == [
        index in (3, 5) for index in range(7)
    ]


def test_no_rows(folder: Path) -> None:
    pq.write_table(pq.read_table("rows.parquet").slice(0, 0), "rows.parquet")
    assert main(WORDS) == 0
    result = pq.read_table("out.parquet")
    assert result.num_rows == 0
    assert result.column_names == ["features", "n", "y"]


def test_a_file_that_changes_stops_the_job(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    check = Predictor.check

    def change(predict: Predictor, schema: object) -> None:
        check(predict, schema)
        OnnxProgram({"main": linear_model(seed=1)}).save("model.onnx")

    monkeypatch.setattr(Predictor, "check", change)
    assert main(WORDS) == 2
    assert "model.onnx has changed since the predictor was made" in capsys.readouterr().err
    assert not list(Path().glob("out.parquet*"))


@pytest.mark.parametrize(
    ("file", "message"),
    [
        ("rows.parquet", "rows.parquet has changed since the job began"),
        ("model.onnx", "model.onnx has changed since the predictor was made"),
    ],
)
def test_a_file_that_changes_between_parts_stops_the_job(
    folder: Path,
    file: str,
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    make, before = map_rows._make_part, folder / "before"
    (folder / file).rename(before)
    shutil.copy(before, folder / file)

    def change(job: Any, index: int) -> Any:
        if index == 1:
            with Path(file).open("ab") as stream:
                stream.write(b"\0")
        return make(job, index)

    monkeypatch.setattr(map_rows, "_make_part", change)
    assert main([*WORDS, "--part-size", "100"]) == 2
    assert message in capsys.readouterr().err
    assert not Path("out.parquet").exists()
    assert [path.name for path in Path("out.parquet.parts").glob("*.parquet")] == ["000000.parquet"]


GIB = 1 << 30


def test_a_cluster_without_the_processors_or_the_memory_is_refused() -> None:
    nodes = [{"CPU": 2.0, "memory": 8.0 * GIB}, {"CPU": 16.0, "memory": 1.0 * GIB}, {"memory": 1.0}]
    for threads, size in ((2, 8), (16, 1), (1, 4)):
        map_rows._check_nodes(nodes, threads, size * GIB)
    map_rows._check_nodes([{"memory": 1.0}], 64, GIB)  # nodes may still come
    for threads, size in ((4, 2), (17, 1), (1, 9)):
        with pytest.raises(CommandError, match=r"the cluster have 2 and 8\.0 GiB; 16 and 1\.0 GiB"):
            map_rows._check_nodes(nodes, threads, size * GIB)


def test_a_worker_that_ends_is_told(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(map_rows, "_make_part", _leave)
    assert main([*WORDS, "--workers", "2"]) == 2
    assert "a worker ended unexpectedly" in capsys.readouterr().err


def _leave(job: object, index: int) -> None:
    os._exit(1)
