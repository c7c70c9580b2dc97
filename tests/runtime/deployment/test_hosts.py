"""Ranks and stages in threads, each of which is a process of its own to gloo."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from coreai_onnx.composites import COMPOSITES
from coreai_onnx.errors import InputError, SessionError
from coreai_onnx.program import OnnxProgram
from coreai_onnx.runtime.sessions.session import Session
from coreai_onnx.scale import Hosts, Stage
from tests.custom_ops.single_op import single_op_model
from tests.runtime.memory.test_stages import HEADER, feeds, layers
from tests.support.ranks import free_address, in_threads
from tests.support.ranks import joined as ranks_of
from tests.support.small_models import parse


@pytest.fixture
def join() -> Iterator[Callable[[int], list[Hosts]]]:
    """A function that returns the hosts of so many ranks."""
    joined: list[Hosts] = []

    def hosts(ranks: int) -> list[Hosts]:
        joined.extend(ranks_of(ranks))
        return joined[-ranks:]

    yield hosts
    for one in joined:
        one.close()


def opened(op: str, part: torch.Tensor, hosts: Hosts, **settings: Any) -> Session:
    attributes = {"ranks": hosts.ranks, "rank": hosts.rank} | settings.pop("attributes", {})
    model = single_op_model(op, [part], attributes)
    return Session(model, group=hosts, threads=1, **settings)


def results(sessions: list[Session], parts: list[torch.Tensor]) -> list[Any]:
    runs = [
        lambda session=s, part=p: session.run(in0=part)["output0"]
        for s, p in zip(sessions, parts, strict=True)
    ]
    return in_threads(*runs)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"ranks": 3, "timeout": 5}, "rank 0 is one of 2"),
        ({"rank": 0}, "cannot join .*in use"),
        ({"rank": 2}, "rank must be 0 to 1, got 2"),
        ({"address": "nowhere"}, "the address must be host:port, got 'nowhere'"),
        ({"address": "no.such.host.invalid:1"}, "Name or service not known|name resolution"),
        ({"address": None, "timeout": 0.3}, "cannot join 127.0.0.1:.*refused"),
        ({"timeout": 0}, "give a number of seconds greater than 0"),
    ],
    ids=lambda x: x if isinstance(x, str) else "",
)
def test_a_process_that_cannot_join_is_an_error(arguments: dict[str, Any], said: str) -> None:
    at, start = free_address(), time.monotonic()
    given: dict[str, Any] = {"address": at, "rank": 1, "ranks": 2, "timeout": 5} | arguments
    given["address"] = given["address"] or free_address()

    def late() -> Hosts:
        time.sleep(0.5)  # rank 0 listens
        return Hosts(**given)

    first, second = in_threads(lambda: Hosts(at, 0, 2, timeout=3), late)
    assert isinstance(second, SessionError)
    assert re.search(said, str(second))
    assert re.search("rank 1 (is one of 3|did not come within 3 s)", str(first))
    assert time.monotonic() - start < 10


def test_a_rank_joins_once() -> None:
    at = free_address()
    results = in_threads(*(partial(Hosts, at, rank, 2, timeout=20) for rank in (0, 1, 1)))
    said = [str(one) for one in results if isinstance(one, SessionError)]
    assert said == ["another process has joined as this rank"]
    for one in results:
        if isinstance(one, Hosts):
            one.close()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize("shape", [(3, 8), (1, 1), (2, 3, 40_001), (0, 4)], ids=str)
@pytest.mark.parametrize("op", ["all_reduce", "all_gather"])
def test_ranks_have_the_bits_of_one_process(
    kernels: Path, join: Any, op: str, shape: tuple[int, ...], dtype: torch.dtype
) -> None:
    for ranks in (2, 3):
        hosts, parts = join(ranks), [torch.randn(1, *shape).to(dtype) for _ in range(ranks)]
        sessions = [opened(op, part, one) for part, one in zip(parts, hosts, strict=True)]
        whole = Session(single_op_model(op, [torch.cat(parts)], {"ranks": ranks}), kernels=True)
        wanted = np.asarray(whole.run(in0=torch.cat(parts))["output0"])[:1]
        for _ in range(2):
            for result in results(sessions, parts):
                assert np.array_equal(np.asarray(result), wanted)
        reference = COMPOSITES[op].reference(torch.cat(parts).double(), ranks=ranks)[:1]
        assert wanted.shape == tuple(reference.shape)


def test_ranks_in_different_calls_are_refused(kernels: Path, join: Any) -> None:
    cases = (
        (("all_reduce", 2), ("all_reduce", 4), "all_reduce of 16 bytes, rank 0 all_reduce of 8"),
        (("all_reduce", 2), ("all_gather", 2), "all_gather of 8 bytes, rank 0 all_reduce of 8"),
    )
    for first, second, said in cases:
        hosts = join(2)
        parts = [torch.ones(1, size) for _, size in (first, second)]
        called = zip((first[0], second[0]), parts, hosts, strict=True)
        sessions = [opened(*one) for one in called]
        errors = results(sessions, parts)
        assert all(isinstance(one, SessionError) for one in errors)
        assert f"rank 1 runs {said}" in str(errors[0])
        with pytest.raises(SessionError, match="the group of ranks has failed: rank 1 runs"):
            sessions[0].run(in0=parts[0])


def test_a_rank_that_does_not_come_is_an_error(kernels: Path, join: Any) -> None:
    hosts, part = join(3), torch.ones(1, 2)
    first = opened("all_reduce", part, hosts[0], timeout=0.5)
    second = opened("all_reduce", part, hosts[1])
    errors = results([first, second], [part, part])
    assert "rank 2 did not come in time" in str(errors[0])
    # It waits for rank 0 or rank 2, which closes its connections when it sees the failure.
    assert re.search("rank [02] has ended or failed", str(errors[1]))


@pytest.mark.parametrize(("rank", "ranks"), [(1, 2), (0, 3)])
def test_the_file_of_another_rank_is_refused(
    kernels: Path, join: Any, rank: int, ranks: int
) -> None:
    attributes = {"rank": rank, "ranks": ranks}
    said = f"the file is that of rank {rank} of {ranks}, the process is rank 0 of 2"
    with pytest.raises(SessionError, match=said):
        opened("all_reduce", torch.ones(1, 2), join(2)[0], attributes=attributes)


DIES = """
import sys, time, numpy
from coreai_onnx.runtime.sessions.session import Session
from coreai_onnx.scale import Hosts
hosts = Hosts(sys.argv[1], 1, 2, timeout=300)
session = Session(sys.argv[2], group=hosts, threads=1)
print(session.run(in0=numpy.ones((1, 2), numpy.float32))["output0"].tolist(), flush=True)
time.sleep(100)
"""


def test_a_rank_that_dies_ends_the_others(kernels: Path, tmp_path: Path) -> None:
    at, part = free_address(), torch.full((1, 2), 3.0)
    model = single_op_model("all_reduce", [part], {"ranks": 2, "rank": 1})
    (tmp_path / "1.onnx").write_bytes(model.SerializeToString())
    with subprocess.Popen(
        [sys.executable, "-c", DIES, at, str(tmp_path / "1.onnx")],
        stdout=subprocess.PIPE, text=True,
    ) as other, Hosts(at, 0, 2, timeout=300) as hosts:  # fmt: skip
        session = opened("all_reduce", part, hosts)
        assert session.run(in0=part)["output0"].tolist() == [[4.0, 4.0]]
        assert other.stdout is not None
        assert other.stdout.readline() == "[[4.0, 4.0]]\n"

        def kill() -> float:
            time.sleep(0.3)
            other.kill()
            return time.monotonic()

        died, error = in_threads(kill, lambda: session.run(in0=part))
        assert time.monotonic() - died < 5
        assert isinstance(error, SessionError)
        assert "all_reduce: rank 1 has ended or failed" in str(error)


def staged(folder: Path, count: int) -> tuple[OnnxProgram, list[Path]]:
    """Return a program with states, and the files of its stages."""
    program = OnnxProgram({"main": layers()})
    paths = [folder / f"{i}.onnx" for i in range(count)]
    for path, stage in zip(paths, program.split(count, feeds(3)).stages, strict=True):
        stage.save(path)
    return program, paths


def open_stages(paths: list[Path], hosts: list[Hosts]) -> list[Any]:
    opened = zip(paths, hosts, strict=True)
    runs = [partial(Stage, path, one, threads=1) for path, one in opened]
    return in_threads(*runs)


@pytest.mark.parametrize("count", [2, 3])
def test_stages_in_processes_compute_what_the_whole_does(
    tmp_path: Path, join: Any, count: int
) -> None:
    program, paths = staged(tmp_path, count)
    stages, session, given = open_stages(paths, join(count)), program.session(), feeds(5)
    for call in range(3):
        now = given if call == 0 else {"x": given["x"] + call}
        whole = session.run(**now)
        for result in in_threads(*(partial(one.run, **now) for one in stages)):
            assert list(result) == ["h3"]
            np.testing.assert_array_equal(result["h3"], np.asarray(whole["h3"]))


def test_results_may_be_read_by_later_stages(tmp_path: Path, join: Any) -> None:
    nodes = (
        "h = Concat<axis=0>(x, x) m = Concat<axis=0>(h, x) s = Shape(m) y = Concat<axis=0>(m, h)"
    )
    values = "(bfloat16[n] x) => (bfloat16[i] h, int64[1] s, bfloat16[j] y)"
    model = parse(f"{HEADER} g {values} {{ {nodes} }}")
    for i, node in enumerate(model.graph):
        node.metadata_props["coreai.scope"] = f"net.{i // 2}"
    x = torch.randn(5).to(torch.bfloat16)
    program = OnnxProgram({"main": model})
    for i, stage in enumerate(program.split(2, {"x": x}).stages):
        stage.save(tmp_path / f"{i}.onnx")
    stages = open_stages([tmp_path / "0.onnx", tmp_path / "1.onnx"], join(2))
    for rows in (x, torch.empty(0, dtype=torch.bfloat16)):
        whole = program.run(x=rows)
        for result in in_threads(*(partial(one.run, x=rows) for one in stages)):
            assert list(result) == ["h", "s", "y"]
            for name, value in result.items():
                np.testing.assert_array_equal(value, np.asarray(whole[name]))


def test_a_stage_that_ends_ends_the_others(tmp_path: Path, join: Any) -> None:
    _, paths = staged(tmp_path, 2)
    hosts = join(2)
    stages = open_stages(paths, hosts)
    with pytest.raises(InputError, match="inputs must be x, got z"):
        stages[1].run(z=1)
    start = time.monotonic()
    wrong = np.zeros((2, 3), np.float32)
    first, second = in_threads(*(partial(one.run, x=wrong) for one in stages))
    assert isinstance(first, InputError)
    assert "rank 0 has ended or failed" in str(second)
    assert time.monotonic() - start < 5
    with pytest.raises(SessionError, match="the group of ranks has failed"):
        stages[0].run(x=feeds(2)["x"])


def test_other_files_are_refused(tmp_path: Path, join: Any) -> None:
    program, paths = staged(tmp_path, 2)
    hosts = join(2)
    with pytest.raises(SessionError, match="is stage 1 of 2, the process is rank 0 of 2"):
        Stage(paths[1], hosts[0])
    program.save(tmp_path / "whole.onnx")
    with pytest.raises(SessionError, match=r"whole\.onnx is not a stage of a pipeline"):
        Stage(tmp_path / "whole.onnx", hosts[0])
