"""Decoders that are spread over processes, each of which has a part of every layer."""

from __future__ import annotations

import multiprocessing
import secrets
import uuid
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from os import PathLike
from pathlib import Path
from typing import Any, Self, Unpack

from coreai_onnx.errors import (
    CoreaiError,
    GenerationError,
    failures_as,
    reason_of,
)
from coreai_onnx.huggingface.generation.configuration import Options
from coreai_onnx.huggingface.generation.generating import LanguageModel
from coreai_onnx.runtime.tensors.outputs import Array

RANK_FOLDER = "rank_{}"
_ENDING = 10.0
"""Seconds after which a process that does not end is killed."""


def folders_of(folder: Path) -> list[Path]:
    """Return the folders of the ranks.

    Raises:
        GenerationError: If there are none.
    """
    count = sum(1 for _ in folder.glob(RANK_FOLDER.format("*")))
    folders = [folder / RANK_FOLDER.format(rank) for rank in range(count)]
    if not folders or not all(one.is_dir() for one in folders):
        raise GenerationError(f"{folder}: not a folder of export_ranks, with rank_0, rank_1, …")
    return folders


class Ranks:
    """A decoder whose ranks run in processes, which end with this one.

    ```python
    with Ranks("my_llama_ranks") as ranks:
        ranks.generate("Once upon a time", max_new_tokens=100)
    ```

    Attributes:
        pids: The processes, by rank.
        group: The name by which they find each other.
    """

    def __init__(self, folder: str | PathLike[str], *, threads: int | None = 1) -> None:
        """Start a process for each rank, and wait until all have opened their files.

        Args:
            folder: A folder of `export_ranks`.
            threads: Threads per operator of each rank, as for `session`.

        Raises:
            GenerationError: If it is not such a folder, or a rank does not start.
        """
        context, self.group = multiprocessing.get_context("spawn"), uuid.uuid4().hex
        self._connections: list[Connection] = []
        self._processes: list[Any] = []
        for place in folders_of(Path(folder)):
            ours, theirs = context.Pipe()
            process = context.Process(
                target=_serve, args=(theirs, place, self.group, threads), daemon=True
            )
            process.start()
            theirs.close()  # a rank that ends closes its pipe
            self._connections.append(ours)
            self._processes.append(process)
        self.pids = tuple(process.pid for process in self._processes)
        self._results()

    def generate(self, prompt: Any, **options: Unpack[Options]) -> str | list[str] | Array:
        """Generate on all ranks, as :func:`coreai_onnx.generate`, and return the result.

        Options are sent to other processes, so that functions among them must be picklable.

        Raises:
            GenerationError: If a rank fails or ends; then all have ended. Or if they are closed.
        """
        if not self._processes:
            raise GenerationError("the ranks have ended")
        # Every rank samples the same tokens.
        seeded = {"seed": secrets.randbelow(1 << 31), **options}
        for rank, connection in enumerate(self._connections):
            try:
                connection.send((prompt, seeded))
            except (OSError, ValueError, TypeError, AttributeError) as error:
                raise self._failed(f"rank {rank}: {reason_of(error)}") from error
        return self._results()[0]  # type: ignore[no-any-return]

    def close(self) -> None:
        """End the processes."""
        for connection in self._connections:
            connection.close()
        for process in self._processes:
            process.join(_ENDING)
            if process.is_alive():
                process.kill()
                process.join()
        self._connections, self._processes = [], []

    def __enter__(self) -> Self:
        """Return the ranks."""
        return self

    def __exit__(self, *error: object) -> None:
        """End the processes."""
        self.close()

    def _results(self) -> list[Any]:
        """Return the results of all ranks.

        Raises:
            GenerationError: If one fails. If all fail in the same way, as with a wrong option, they
                go on.
        """
        ranks = {id(one): rank for rank, one in enumerate(self._connections)}
        results: dict[int, Any] = {}
        errors: dict[int, str] = {}
        while len(results) < len(ranks):
            waiting = [one for rank, one in enumerate(self._connections) if rank not in results]
            # After an error, the others may wait for that rank.
            ready: list[Any] = list(wait(waiting, _ENDING if errors else None))
            if not ready:
                break
            for connection in ready:
                rank = ranks[id(connection)]
                try:
                    results[rank], error = connection.recv()
                except (EOFError, OSError):
                    process = self._processes[rank]
                    process.join(_ENDING)
                    code = process.exitcode
                    raise self._failed(f"rank {rank} has ended (exit code {code})") from None
                if error:
                    errors[rank] = error
        if not errors:
            return [results[rank] for rank in range(len(ranks))]
        if len(errors) == len(ranks) and len(set(errors.values())) == 1:
            raise GenerationError(errors[0])
        raise self._failed("\n".join(f"rank {rank}: {why}" for rank, why in errors.items()))

    def _failed(self, why: str) -> GenerationError:
        # Others wait for it in the middle of a layer.
        for process in self._processes:
            process.kill()
        self.close()
        return GenerationError(why)


def _serve(connection: Connection, folder: Path, group: str, threads: int | None) -> None:
    """Answer prompts, in the process of a rank, until the pipe is closed."""
    with suppress(EOFError, OSError, KeyboardInterrupt):
        model, error = None, ""
        try:
            with failures_as(GenerationError, f"cannot open {folder}"):
                model = LanguageModel.open(folder, threads=threads, group=group)
        except CoreaiError as fault:
            error = str(fault)
        connection.send((None, error))
        while model is not None:
            prompt, options = connection.recv()
            result, error = None, ""
            try:
                with failures_as(GenerationError, "the generation failed"):
                    result = model.generate(prompt, **options)
            except CoreaiError as fault:
                error = str(fault)
            connection.send((result, error))
