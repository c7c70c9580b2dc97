"""Our kernels on one instruction set each, in processes of their own that take turns.

``COREAI_OPS_TARGET`` is read when the library is registered, hence the processes. Each one measures
its own turns, while all others wait.
"""

from __future__ import annotations

import multiprocessing
import os
import time
from multiprocessing.connection import Connection

import torch

from coreai_onnx.runtime import ops_library_path
from tools.bench.case import Case
from tools.bench.implementations import in_onnxruntime, inputs_of
from tools.bench.kernel_cases import CASES

TARGETS = ("avx2", "avx512", "avx512_bf16", "amx")


class TargetRunner:
    """A case on our kernels for one target, in another process."""

    def __init__(self, connection: Connection, case: Case) -> None:
        self._connection = connection
        self._ask("case", case.name)

    def __call__(self) -> None:
        self.seconds(1)

    def seconds(self, repeats: int) -> float:
        """Return how long a number of calls took in the other process."""
        answer = self._ask("run", repeats)
        assert isinstance(answer, float)
        return answer

    def result(self) -> torch.Tensor:
        answer = self._ask("result", None)
        assert isinstance(answer, torch.Tensor)
        return answer

    def _ask(self, *question: object) -> object:
        self._connection.send(question)
        return self._connection.recv()


class Targets:
    """A process for each target."""

    def __init__(self, targets: list[str], threads: int) -> None:
        context = multiprocessing.get_context("spawn")
        self._connections: dict[str, Connection] = {}
        for target in targets:
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(theirs, target, threads), daemon=True)
            process.start()
            theirs.close()  # the end of the process ends a question
            self._connections[target] = ours

    def runners(self, case: Case) -> dict[str, TargetRunner]:
        """Return a case on each target."""
        return {name: TargetRunner(each, case) for name, each in self._connections.items()}


def _serve(connection: Connection, target: str, threads: int) -> None:
    """Answer the questions of a TargetRunner until its process ends."""
    os.environ["COREAI_OPS_TARGET"] = target
    clock = time.process_time if threads == 1 else time.perf_counter
    cases = {case.name: case for case in CASES}
    while True:
        try:
            kind, argument = connection.recv()
        except EOFError:
            return
        if kind == "case":
            case = cases[argument]
            runner = in_onnxruntime(case, inputs_of(case), threads, ops_library_path())
            connection.send(None)
        elif kind == "run":
            if argument > 1:
                runner()
            begun = clock()
            for _ in range(argument):
                runner()
            connection.send(clock() - begun)
        else:
            connection.send(runner.result())
