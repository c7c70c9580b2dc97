"""``coreai-onnx map``."""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import time
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from functools import lru_cache
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from coreai_onnx.cli.options.inputs import (
    chosen_provider,
    declare_kernels,
    declare_provider,
    declare_threads,
)
from coreai_onnx.cli.options.numbers import integer, repeated
from coreai_onnx.cli.options.output import chosen_place
from coreai_onnx.errors import CommandError, RowError, SessionError, failures_as
from coreai_onnx.messages import progress_bar, size_text
from coreai_onnx.model.files.new_files import all_or_nothing
from coreai_onnx.runtime.tensors.tables import with_columns
from coreai_onnx.scale import Predictor

NAME = "map"
DESCRIPTION = """\
run a model on every row of a Parquet file

MODEL is a .onnx file, or a folder of coreai-onnx export. The rows are written to another Parquet
file, in order, with the outputs as further columns (docs/scale.md). What is done is kept beside it
in OUTPUT.parts, so that the same command goes on after an interruption.

  coreai-onnx map minilm_onnx sentences.parquet -o embeddings.parquet --input text=sentence
  coreai-onnx map minilm_onnx sentences.parquet -o embeddings.parquet --workers 2 --batch-size 64
  coreai-onnx map minilm_onnx sentences.parquet -o embeddings.parquet --ray auto --on-error keep
"""
_ERROR = "error"
"""The column with the message of a row that failed."""
_SHOWN = 5
"""Failed rows that are printed."""


def declare(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("model", metavar="MODEL", type=Path)
    parser.add_argument("source", metavar="INPUT.parquet", type=Path)
    parser.add_argument("-o", "--output", required=True, type=Path, metavar="OUTPUT.parquet")
    repeated(parser, "--input", "NAME=COLUMN", "the column of an input; may be repeated")
    repeated(
        parser,
        "--result",
        "NAME=COLUMN",
        "an output and its column (default: all); may be repeated",
    )
    repeated(parser, "--keep", "COLUMN", "a column to keep (default: all); may be repeated")
    parser.add_argument(
        "--batch-size",
        type=integer(1),
        default=64,
        metavar="ROWS",
        help="rows of a run (default: 64)",
    )
    parser.add_argument(
        "--part-size",
        type=integer(1),
        default=10_000,
        metavar="ROWS",
        help="rows of a part, which is done whole or again (default: 10000)",
    )
    parser.add_argument(
        "--workers", type=integer(1, 1024), default=1, metavar="N", help="processes (default: 1)"
    )
    parser.add_argument(
        "--ray",
        metavar="ADDRESS",
        help="run in a Ray cluster that sees the same files: its address, or auto",
    )
    parser.add_argument(
        "--on-error",
        choices=("stop", "keep"),
        default="stop",
        help=f"what a row that fails does: stop the job (default), or get a message in the column "
        f"{_ERROR!r} and no outputs",
    )
    parser.add_argument(
        "--deterministic",
        action="store_true",
        help="open a suitable model for the same bits in every run (docs/determinism.md)",
    )
    declare_kernels(parser)
    declare_threads(parser)
    declare_provider(parser)


@dataclass(frozen=True)
class _Job:
    """What a worker needs; a part is a range of ``size`` rows, of which it reads ``columns``.

    The source is refused if its ``stamp``, size and time of the last change, is another one.
    """

    predict: Predictor
    source: Path
    folder: Path
    size: int
    rows: int
    keeps_failed: bool
    columns: tuple[str, ...]
    stamp: tuple[int, int]

    def part(self, index: int) -> Path:
        return self.folder / f"{index:06}.parquet"

    @property
    def count(self) -> int:
        return -(-self.rows // self.size)


def execute(options: argparse.Namespace) -> int:
    """Run the model on all rows, and print how many there were; 1 if rows failed."""
    try:
        import pyarrow.parquet as pq
    except ImportError as error:
        raise CommandError("map needs pyarrow: pip install coreai-onnx-bridge[scale]") from error
    source = options.source.resolve()
    target = chosen_place(options.output, ".parquet").resolve()
    if source == target:
        raise CommandError("the output must be another file than the input")
    with failures_as(CommandError, f"{options.source} is not a readable Parquet file"):
        file = pq.ParquetFile(source)
    predict = Predictor(
        options.model,
        inputs=_pairs(options.input, "--input"),
        outputs=_pairs(options.result, "--result") or None,
        keep=options.keep or None,
        batch_size=options.batch_size,
        # Workers share the processors: together they start no more threads than there are.
        threads=options.threads or max((os.cpu_count() or 1) // options.workers, 1),
        deterministic=options.deterministic,
        kernels=options.kernels,
        provider=chosen_provider(options),
    )
    predict.check(file.schema_arrow)
    folder = target.with_name(f"{target.name}.parts")
    job = _Job(
        predict=predict,
        source=source,
        folder=folder,
        size=options.part_size,
        rows=file.metadata.num_rows,
        keeps_failed=options.on_error == "keep",
        columns=tuple(predict.reads(file.schema_arrow.names)),
        stamp=_stamp(source),
    )
    with failures_as(CommandError, f"{target} cannot be written"):
        _begin(job)
    start = time.monotonic()
    try:
        failed = _run(job, options.workers, options.ray)
    finally:
        if job.count and not any(job.part(i).exists() for i in range(job.count)):
            shutil.rmtree(folder)  # nothing to go on from
    with failures_as(CommandError, f"{target} cannot be written"):
        _join(job, target, file.schema_arrow)
    seconds = time.monotonic() - start
    print(f"{job.rows} rows in {seconds:.1f} s written to {options.output}")
    if failed:
        print(f"{len(failed)} rows failed:")
        for row, message in sorted(failed)[:_SHOWN]:
            print(f"  row {row}: {message}")
    return 1 if failed else 0


def _pairs(texts: list[str], option: str) -> dict[str, str]:
    pairs = {}
    for text in texts:
        name, equals, column = text.partition("=")
        if not name or (equals and not column) or name in pairs:
            raise CommandError(f"{option} must be NAME=COLUMN, each name once, got {text!r}")
        pairs[name] = column or name
    return pairs


# ------------------------------------------------------------------------------------------- parts
def _begin(job: _Job) -> None:
    """Make the folder of the parts, or check that those in it are of the same job."""
    of_job = [repr(vars(job.predict)), job.size, job.keeps_failed, *job.stamp]
    digest = hashlib.blake2b(json.dumps(of_job).encode(), digest_size=16).hexdigest()
    record = job.folder / "job.txt"
    if job.folder.exists():
        if not record.is_file() or record.read_text() != digest:
            raise CommandError(
                f"{job.folder} has parts of another job: remove it, or choose another output"
            )
        return
    job.folder.mkdir()
    record.write_text(digest)


def _stamp(source: Path) -> tuple[int, int]:
    stat = source.stat()
    return stat.st_size, stat.st_mtime_ns


def _check_source(job: _Job) -> None:
    if _stamp(job.source) != job.stamp:
        raise CommandError(f"{job.source} has changed since the job began")


def _run(job: _Job, workers: int, ray_address: str | None) -> list[tuple[int, str]]:
    """Make the parts that are missing; return the rows that failed, with messages."""
    import pyarrow.parquet as pq

    there = [i for i in range(job.count) if job.part(i).exists()]
    missing = sorted(set(range(job.count)) - set(there))
    failed: list[tuple[int, str]] = []
    if job.keeps_failed:
        for i in there:
            messages = pq.read_table(job.part(i), columns=[_ERROR]).column(0).to_pylist()
            failed += [(i * job.size + j, text) for j, text in enumerate(messages) if text]
    done = (
        _in_ray(job, missing, ray_address)
        if ray_address
        else _in_processes(job, missing, workers)
        if workers > 1
        else (_make_part(job, i) for i in missing)
    )
    with progress_bar("rows", total=job.rows) as bar:
        bar.update(sum(min(job.size, job.rows - i * job.size) for i in there))
        for rows, messages in done:
            bar.update(rows)
            failed += messages
    return failed


def _in_processes(job: _Job, parts: list[int], workers: int) -> Iterator[Any]:
    # A process that is forked has the locks of threads that do not exist in it.
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        futures = [pool.submit(_make_part, job, i) for i in parts]
        try:
            for future in as_completed(futures):
                yield future.result()
        except BrokenProcessPool as error:
            raise CommandError(
                "a worker ended unexpectedly, perhaps for lack of memory; the same command goes on"
            ) from error
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def _in_ray(job: _Job, parts: list[int], address: str) -> Iterator[Any]:
    try:
        import ray
    except ImportError as error:
        raise CommandError("--ray needs Ray: pip install coreai-onnx-bridge[ray]") from error
    with failures_as(CommandError, f"cannot connect to a Ray cluster at {address!r}"):
        ray.init(address=address, log_to_driver=False, ignore_reinit_error=True)
    threads, weights = job.predict.settings["threads"], job.predict.nbytes
    _check_nodes([node["Resources"] for node in ray.nodes() if node["Alive"]], threads, weights)
    # A task whose process or machine is lost is run again.
    task = ray.remote(num_cpus=threads, memory=weights, max_retries=3)(_make_part)
    pending = [task.remote(job, i) for i in parts]
    try:
        while pending:
            (done,), pending = ray.wait(pending)
            try:
                yield ray.get(done)
            except ray.exceptions.RayTaskError as error:
                raise error.cause from None
            except ray.exceptions.RayError as error:
                raise CommandError(f"the Ray cluster failed: {error}") from error
    finally:
        for one in pending:
            ray.cancel(one)


def _check_nodes(nodes: Iterable[Mapping[str, float]], threads: int, weights: int) -> None:
    """Check that one of the nodes of a cluster can run a part: Ray would wait for it forever.

    Raises:
        CommandError: None can.
    """
    # A head without processors may stand for nodes that are still to come.
    working = [node for node in nodes if node.get("CPU")]
    if not working or any(
        node["CPU"] >= threads and node.get("memory", 0) >= weights for node in working
    ):
        return
    there = (f"{n['CPU']:g} and {size_text(int(n.get('memory', 0)))}" for n in working)
    raise CommandError(
        f"a part needs {threads} processors (--threads) and {size_text(weights)} of memory for the "
        f"weights, and the nodes of the cluster have {'; '.join(there)}"
    )


# A row group is decoded as a whole, and may hold many parts, which a worker makes in order.
@lru_cache(maxsize=1)
def _row_group(source: Path, index: int, columns: tuple[str, ...]) -> Any:
    import pyarrow.parquet as pq

    return pq.ParquetFile(source).read_row_group(index, columns=list(columns))


def _rows_of(job: _Job, first: int, count: int) -> Any:
    """Return some rows of the Parquet file."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    metadata, groups, start = pq.read_metadata(job.source), [], 0
    for index in range(metadata.num_row_groups):
        end = start + metadata.row_group(index).num_rows
        if start < first + count and first < end:
            offset = max(first - start, 0)
            group = _row_group(job.source, index, job.columns)
            groups.append(group.slice(offset, first + count - start - offset))
        start = end
    return pa.concat_tables(groups)


def _make_part(job: _Job, index: int) -> tuple[int, list[tuple[int, str]]]:
    """Write a part; return the number of its rows and those that failed."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    first = index * job.size
    _check_source(job)
    with failures_as(CommandError, f"{job.source} cannot be read"):
        table = _rows_of(job, first, min(job.size, job.rows - first))
    job.predict.open()  # what fails here is not the fault of a row
    failed: dict[int, str] = {}
    result = _predicted(job, table, first, failed)
    if job.keeps_failed:
        messages = [failed.get(first + i) for i in range(len(table))]
        result = result.append_column(_ERROR, pa.array(messages, pa.string()))
    elif failed:
        row = min(failed)
        raise CommandError(f"row {row}: {failed[row]}")
    # After the work, so that no part has rows of two versions of a file.
    job.predict.check(table.schema)
    _check_source(job)
    # A part that exists is complete: a job that was interrupted goes on from those.
    with all_or_nothing() as files:
        pq.write_table(result, files.create(job.part(index)))
    return len(table), list(failed.items())


def _predicted(job: _Job, table: Any, first: int, failed: dict[int, str]) -> Any:
    """Return the results of rows; halves are run again until those that fail are single rows."""
    import pyarrow as pa

    try:
        return job.predict(table)
    except SessionError as error:
        if len(table) == 1:
            failed[first] = error.reason if isinstance(error, RowError) else str(error)
            return with_columns(table, job.predict.keep, {})
    half = len(table) // 2
    upper = _predicted(job, table.slice(0, half), first, failed)
    if failed and not job.keeps_failed:
        return upper  # the job stops at the first row
    lower = _predicted(job, table.slice(half), first + half, failed)
    return pa.concat_tables([upper, lower], promote_options="default")


def _join(job: _Job, target: Path, schema: Any) -> None:
    """Write all parts as one file, and remove them."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    parts = [job.part(i) for i in range(job.count)]
    if not parts:
        empty = job.predict(schema.empty_table())
        if job.keeps_failed:
            empty = empty.append_column(_ERROR, pa.array([], pa.string()))
    schemas = [pq.read_schema(part) for part in parts] or [empty.schema]
    # A column that has only nulls in a part has the type null there.
    whole = pa.unify_schemas(schemas, promote_options="default")
    with all_or_nothing() as files, pq.ParquetWriter(files.create(target), whole) as writer:
        for part in parts:
            table = pq.read_table(part)
            for name in whole.names:
                if name not in table.column_names:  # all rows of the part failed
                    nulls = pa.nulls(len(table), whole.field(name).type)
                    table = table.append_column(name, nulls)
            writer.write_table(table.select(whole.names).cast(whole))
    shutil.rmtree(job.folder)
