"""Collectives: on the parts of all ranks, and between threads and processes that have one each."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest
import torch

from coreai_onnx.composites import COMPOSITES
from tests.custom_ops.single_op import DTYPES, ORT_SILENT, run_model, run_op, single_op_model
from tests.support.tolerances import assert_close

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="groups of ranks are for Linux")
OPS = ("all_reduce", "all_gather")
SHAPES = ((3, 8), (1, 1), (2, 3, 40_001), (0, 4), (2, 0))
"""Of a part; the third is larger than what is exchanged at a time."""
SHARED = Path("/dev/shm")


@pytest.fixture
def group():
    """A name that no other test has; nothing of it is left."""
    name = uuid.uuid4().hex
    yield name
    assert not list(SHARED.glob(f"*{name}*"))


def opened(kernels, group, op, part, rank, ranks, timeout=20.0):
    options = ort.SessionOptions()
    options.log_severity_level = ORT_SILENT
    options.intra_op_num_threads = 1
    options.add_session_config_entry("coreai.op_types", op)
    options.add_session_config_entry("coreai.group", group)
    options.add_session_config_entry("coreai.group_timeout", str(timeout))
    options.register_custom_ops_library(str(kernels))
    model = single_op_model(op, [part], {"ranks": ranks, "rank": rank}).SerializeToString()
    return ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def run_ranks(kernels, group, op, parts, turns=1):
    """Return the results of all ranks, of the last of several runs."""
    count = len(parts)
    sessions = [opened(kernels, group, op, parts[r], r, count) for r in range(count)]

    def run(rank):
        results = [run_model(sessions[rank], [parts[rank]])[0] for _ in range(turns)]
        assert all(result.equal(results[0]) for result in results)
        return results[-1]

    with ThreadPoolExecutor(count) as threads:
        return list(threads.map(run, range(count)))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("op", OPS)
def test_agrees_with_the_reference(kernels, op, shape, dtype):
    for ranks in (1, 2, 3):
        parts = torch.randn(ranks, *shape).to(dtype)
        wanted = COMPOSITES[op].reference(parts.double(), ranks=ranks).to(dtype)
        assert_close(run_op(kernels, op, [parts], ranks=ranks), wanted)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("op", OPS)
def test_ranks_have_the_bits_of_one_process(kernels, group, op, shape, dtype):
    for ranks in (2, 4):
        parts = [torch.randn(1, *shape).to(dtype) for _ in range(ranks)]
        wanted = run_op(kernels, op, [torch.cat(parts)], ranks=ranks)[:1]
        for result in run_ranks(kernels, group, op, parts, turns=3):
            assert result.equal(wanted)


def test_a_sum_has_the_order_of_the_ranks(kernels, group):
    parts = [torch.full((1, 1, 4), x) for x in (1e30, 1.0, -1e30, 2.0)]
    for result in run_ranks(kernels, group, "all_reduce", parts):
        assert result.tolist() == [[[2.0] * 4]]


@pytest.mark.parametrize("op", OPS)
def test_one_rank_alone_is_refused(kernels, op):
    with pytest.raises(Exception, match=rf"{op}: input parts .* rank 1 of 2, and .* in no gro"):
        run_op(kernels, op, [torch.randn(1, 2, 3)], ranks=2, rank=1)
    with pytest.raises(Exception, match=rf"{op}: input parts has shape \[3, 2\], expected \[1, "):
        run_op(kernels, op, [torch.randn(3, 2)], ranks=2)


@pytest.mark.parametrize(
    ("attributes", "said"),
    [
        ({"ranks": 0}, "attribute ranks is 0, expected 1 to 64"),
        ({"ranks": 65}, "attribute ranks is 65, expected 1 to 64"),
        ({"ranks": 2, "rank": 2}, "attribute rank is 2 of 2"),
        ({"ranks": 2, "rank": -1}, "attribute rank is -1, expected 0 to 64"),
    ],
)
def test_wrong_ranks_are_refused(kernels, attributes, said):
    with pytest.raises(Exception, match=said):
        run_op(kernels, "all_reduce", [torch.randn(2, 3)], **attributes)


@pytest.mark.parametrize("name", ["../up", "a b", "x" * 201])
def test_wrong_names_are_refused(kernels, name):
    with pytest.raises(Exception, match="name of a group of ranks must be 1 to 200 letters"):
        opened(kernels, name, "all_reduce", torch.randn(1, 2), 0, 2)


def test_a_wrong_timeout_is_refused(kernels):
    with pytest.raises(Exception, match=r"coreai\.group_timeout=0: a number of seconds greater"):
        opened(kernels, "x", "all_reduce", torch.randn(1, 2), 0, 2, timeout=0)


def test_a_rank_that_does_not_come_is_an_error(kernels, group):
    part = torch.randn(1, 2)
    first = opened(kernels, group, "all_reduce", part, 0, 3, timeout=0.3)
    second = opened(kernels, group, "all_reduce", part, 1, 3, timeout=30)
    with ThreadPoolExecutor(2) as threads:
        slow = threads.submit(run_model, second, [part])
        with pytest.raises(Exception, match=r"group .*: rank 2 did not come within 0\.3"):
            run_model(first, [part])
        with pytest.raises(Exception, match="rank 0 has failed"):
            slow.result()
    # A group that has failed does not hinder another one of its name.
    parts = [torch.ones(1, 2)] * 3
    assert run_ranks(kernels, group, "all_reduce", parts)[0].tolist() == [[3.0, 3.0]]


def test_ranks_in_different_calls_are_refused(kernels, group):
    parts = [torch.randn(1, 2), torch.randn(1, 4)]
    with pytest.raises(Exception, match=r"rank . (runs all_reduce of|has failed)"):
        run_ranks(kernels, group, "all_reduce", parts)
    part = torch.randn(1, 2)
    sessions = [opened(kernels, f"{group}b", op, part, r, 2) for r, op in enumerate(OPS)]
    with ThreadPoolExecutor(2) as threads:
        runs = [threads.submit(run_model, session, [part]) for session in sessions]
        said = " ".join(str(run.exception()) for run in runs)
    assert "all_gather of 8 bytes" in said


def test_a_group_of_another_size_is_refused(kernels, group):
    part = torch.randn(1, 2)
    kept = opened(kernels, group, "all_reduce", part, 0, 2)
    with pytest.raises(Exception, match="has another number of ranks than 3"):
        opened(kernels, group, "all_reduce", part, 1, 3)
    del kept


JOIN = """
import sys, time, numpy, onnxruntime as ort
library, model, group, turns = sys.argv[1:]
options = ort.SessionOptions()
options.log_severity_level = 4
options.intra_op_num_threads = 1
options.add_session_config_entry("coreai.group", group)
options.add_session_config_entry("coreai.op_types", "all_reduce")
options.register_custom_ops_library(library)
session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
print("joined", flush=True)
for _ in range(int(turns)):
    (total,) = session.run(None, {"in0": numpy.ones((1, 2), numpy.float32)})
    print(total.tolist(), flush=True)
time.sleep(100)
"""


@pytest.fixture
def join(kernels, group, tmp_path):
    """A function that starts a process that joins as a rank, and takes part in some turns."""
    started = []

    def start(rank, turns, ranks=2):
        model = tmp_path / f"{rank}.onnx"
        attributes = {"ranks": ranks, "rank": rank}
        model.write_bytes(
            single_op_model("all_reduce", [torch.ones(1, 2)], attributes).SerializeToString()
        )
        process = subprocess.Popen(
            [sys.executable, "-c", JOIN, str(kernels), str(model), group, str(turns)],
            stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        started.append(process)
        assert process.stdout.readline() == "joined\n"
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()
        process.stdout.close()


def test_a_rank_that_dies_ends_the_others(kernels, group, join):
    other = join(1, turns=1)
    part = torch.full((1, 2), 3.0)
    session = opened(kernels, group, "all_reduce", part, 0, 2, timeout=60)
    assert run_model(session, [part])[0].tolist() == [[4.0, 4.0]]
    assert other.stdout.readline() == "[[4.0, 4.0]]\n"
    with ThreadPoolExecutor(1) as threads:
        run = threads.submit(run_model, session, [part])
        time.sleep(0.3)
        assert not run.done()
        start = time.monotonic()
        other.kill()  # and nobody waits for it: it is a zombie
        with pytest.raises(Exception, match=r"all_reduce: group .*: rank 1 has ended"):
            run.result()
    assert time.monotonic() - start < 3


def test_a_rank_that_dies_before_all_have_come_leaves_nothing(kernels, group, join):
    other = join(1, turns=0)
    assert (SHARED / f"coreai.{group}").exists()
    other.kill()
    other.wait()
    # What it has left is replaced.
    part = torch.full((1, 2), 3.0)
    session = opened(kernels, group, "all_reduce", part, 0, 2, timeout=60)
    join(1, turns=1)
    assert run_model(session, [part])[0].tolist() == [[4.0, 4.0]]


def test_a_rank_that_another_process_has_is_refused(kernels, group, join):
    join(1, turns=0, ranks=3)
    with pytest.raises(Exception, match=r"rank 1 of group .* runs in another session already"):
        opened(kernels, group, "all_reduce", torch.ones(1, 2), 1, 3)
    kept = opened(kernels, group, "all_reduce", torch.ones(1, 2), 0, 3)
    del kept  # removes the file that the other process would leave


def test_another_file_of_the_name_is_refused(kernels, group):
    path = SHARED / f"coreai.{group}"
    for content, said in ((b"x" * 10, "another number of ranks"), (None, "is not the file of")):
        part = torch.ones(1, 2)
        kept = opened(kernels, group, "all_reduce", part, 0, 2)
        with path.open("r+b") as file:
            file.truncate(len(content)) if content else file.write(b"other")
        with pytest.raises(Exception, match=said):
            opened(kernels, group, "all_reduce", part, 1, 2)
        if content:
            # Its mapping is larger than the file now.
            os.truncate(path, 1 << 21)
        del kept


def test_groups_of_one_name_may_follow_each_other(kernels, group):
    for _ in range(3):
        parts = [torch.randn(1, 5) for _ in range(2)]
        results = run_ranks(kernels, group, "all_reduce", parts)
        assert np.array_equal(results[0].numpy(), (parts[0] + parts[1]).numpy())
