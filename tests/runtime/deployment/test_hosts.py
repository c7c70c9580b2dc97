"""Ranks and stages in threads, each of which is a process of its own to gloo."""

from __future__ import annotations

import socket
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

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
from tests.support.small_models import parse

Result = TypeVar("Result")
TIMEOUT = 20.0


def address() -> str:
    """Return an address on which nothing listens."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{one.getsockname()[1]}"


def in_threads(*runs: Callable[[], Result]) -> list[Any]:
    """Return the result or error of each, which run at the same time."""
    with ThreadPoolExecutor(len(runs)) as threads:
        futures = [threads.submit(run) for run in runs]
        return [one.exception() or one.result() for one in futures]


@pytest.fixture
def join() -> Iterator[Callable[[int], list[Hosts]]]:
    """A function that returns the hosts of so many ranks."""
    joined: list[Hosts] = []

    def hosts(ranks: int) -> list[Hosts]:
        at = address()
        runs = [lambda rank=r: Hosts(at, rank, ranks, timeout=TIMEOUT) for r in range(ranks)]
        joined.extend(in_threads(*runs))
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
        lambda session=s, part=p: session.run(in0=part)["out0"]
        for s, p in zip(sessions, parts, strict=True)
    ]
    return in_threads(*runs)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("shape", [(3, 8), (1, 1), (2, 3, 40_001), (0, 4)], ids=str)
@pytest.mark.parametrize("op", ["all_reduce", "all_gather"])
def test_ranks_have_the_bits_of_one_process(
    kernels: Path, join: Any, op: str, shape: tuple[int, ...], dtype: torch.dtype
) -> None:
    for ranks in (2, 3):
        hosts, parts = join(ranks), [torch.randn(1, *shape).to(dtype) for _ in range(ranks)]
        sessions = [opened(op, part, one) for part, one in zip(parts, hosts, strict=True)]
        whole = Session(single_op_model(op, [torch.cat(parts)], {"ranks": ranks}), kernels=True)
        wanted = np.asarray(whole.run(in0=torch.cat(parts))["out0"])[:1]
        for _ in range(2):
            for result in results(sessions, parts):
                assert np.array_equal(np.asarray(result), wanted)
        reference = COMPOSITES[op].reference(torch.cat(parts).double(), ranks=ranks)[:1]
        assert wanted.shape == tuple(reference.shape)


def staged(folder: Path, count: int) -> tuple[OnnxProgram, list[Path]]:
    """Return a program with states, and the files of its stages."""
    program = OnnxProgram({"main": layers()})
    paths = [folder / f"{i}.onnx" for i in range(count)]
    for path, stage in zip(paths, program.split(count, feeds(3)).stages, strict=True):
        stage.save(path)
    return program, paths


def open_stages(paths: list[Path], hosts: list[Hosts]) -> list[Any]:
    runs = [lambda p=p, h=h: Stage(p, h, threads=1) for p, h in zip(paths, hosts, strict=True)]
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
        for result in in_threads(*(lambda one=one: one.run(**now) for one in stages)):
            assert list(result) == ["h3"]
            np.testing.assert_array_equal(result["h3"], np.asarray(whole["h3"]))


def test_results_may_be_read_by_later_stages(tmp_path: Path, join: Any) -> None:
    nodes = "h = Tanh(x) m = Relu(h) s = Shape(m) y = Add(m, m)"
    model = parse(f'{HEADER} g (bfloat16[n] x) => (bfloat16[n] h, int64[1] s, bfloat16[n] y) {{ {nodes} }}')
    for i, node in enumerate(model.graph):
        node.metadata_props["coreai.scope"] = f"net.{i // 2}"
    x = torch.randn(5).to(torch.bfloat16)
    program = OnnxProgram({"main": model})
    whole = program.run(x=x)
    for i, stage in enumerate(program.split(2, {"x": x}).stages):
        stage.save(tmp_path / f"{i}.onnx")
    stages = open_stages([tmp_path / "0.onnx", tmp_path / "1.onnx"], join(2))
    for values in (x, torch.empty(0, dtype=torch.bfloat16)):
        whole = program.run(x=values)
        for result in in_threads(*(lambda one=one: one.run(x=values) for one in stages)):
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
    first, second = in_threads(*(lambda one=one: one.run(x=wrong) for one in stages))
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
    with pytest.raises(SessionError, match="whole.onnx is not a stage of a pipeline"):
        Stage(tmp_path / "whole.onnx", hosts[0])
