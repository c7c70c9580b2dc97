"""Decoders that are spread over processes, each of which has a part of every layer."""

from __future__ import annotations

import multiprocessing
import secrets
import uuid
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from os import PathLike
from pathlib import Path
from typing import Any, Self, Unpack

import numpy as np
import torch

from coreai_onnx.errors import (
    ConversionError,
    CoreaiError,
    GenerationError,
    ModelSourceError,
    failures_as,
    reason_of,
)
from coreai_onnx.huggingface.checkpoints.sharding import Style, shard
from coreai_onnx.huggingface.decoders import BATCH, KEPT, PAST, Decoder
from coreai_onnx.huggingface.exporting import DTYPES, export_model
from coreai_onnx.huggingface.folders import copy_companions
from coreai_onnx.huggingface.generation.configuration import Options
from coreai_onnx.huggingface.generation.generating import LanguageModel
from coreai_onnx.huggingface.sources import load_source
from coreai_onnx.huggingface.verification import difference, random_tokens
from coreai_onnx.model.files.new_files import check_new, new_folder
from coreai_onnx.model.files.program_files import MODEL_FILE
from coreai_onnx.model.interface import CAPACITY
from coreai_onnx.runtime.sessions.session import Session
from coreai_onnx.runtime.tensors.outputs import Array

_FOLDER = "rank_{}"
_SIZES = ((1, 5), (3, 8))
"""Batch and tokens of the prompts that are checked; a token follows them."""
_ENDING = 10.0
"""Seconds after which a process that does not end is killed."""


def export_ranks(
    source: str | PathLike[str] | torch.nn.Module,
    folder: str | PathLike[str],
    ranks: int,
    *,
    plan: Mapping[str, Style] | None = None,
    dtype: str | None = None,
    weights_dtype: str | None = None,
    overwrite: bool = False,
    check: bool = True,
    seed: int = 0,
    **options: Any,
) -> Path:
    """Export a decoder as a file for each rank, which has a part of the weights.

    Args:
        source: As for `export_model`; the model fits into the memory.
        folder: The folder to write, with the folders ``rank_0``, ``rank_1``, …. It appears complete
            or not at all.
        ranks: How many ranks there are.
        plan: The style of each module or parameter that is split, by its name with ``*`` for any
            number: ``ColwiseParallel()`` or ``RowwiseParallel()`` of torch, or a word of
            transformers' plans. None is the plan of transformers, ``model.tp_plan``.
        dtype: As for `export_model`.
        weights_dtype: As for `export_model`.
        overwrite: As for `export_model`.
        check: Whether to compare all ranks together with torch; not with ``quantization``.
        seed: As for `export_model`.
        **options: Further arguments of `export_model`; the cache is growing or static.

    Returns:
        The folder.

    Raises:
        ModelSourceError: If the model cannot be split in this way; as for `export_model`.
        ConversionError: If the ranks differ from torch.
        CoreaiError: As for `export_model`.
    """
    if options.get("cache") == "paged":
        raise ModelSourceError('cache="paged" is for an engine; ranks have a growing or static one')
    path, replaces = Path(folder), tuple(_FOLDER.format(rank) for rank in range(ranks))
    check_new(path, replaces=replaces if overwrite else ())
    if dtype is not None and dtype not in DTYPES:
        raise ModelSourceError(f"dtype {dtype!r} must be one of {', '.join(DTYPES)}")
    loaded = load_source(source, "text-generation", dtype=DTYPES[dtype or "float32"], seed=seed)
    stored = str(loaded.weights_dtype).removeprefix("torch.")
    if dtype in (None, "float32") and stored != "float32":
        weights_dtype = weights_dtype or stored
    with new_folder(path, replaces=replaces if overwrite else ()) as temporary:
        for rank in range(ranks):
            place = temporary / _FOLDER.format(rank)
            part = shard(loaded.model, ranks, rank, plan)
            export_model(
                part, place, task="text-generation", dtype=dtype, weights_dtype=weights_dtype,
                check=False, **options,
            )  # fmt: skip
            copy_companions(loaded.model, loaded.folder, place)
        if check and options.get("quantization") is None:
            _check(loaded.model, _folders(temporary))
    return path


def _check(model: Any, folders: Sequence[Path]) -> None:
    """Compare the logits of ranks, which run in threads, with those of the model in torch."""
    decoder, random, group = Decoder(model), torch.Generator().manual_seed(0), uuid.uuid4().hex
    sessions = [Session(f / MODEL_FILE, group=group, threads=1, prepack=False) for f in folders]
    for batch, length in _SIZES:
        tokens = random_tokens(model, torch.Size([batch, length + 1]), random)
        sizes = {BATCH: batch, PAST: 0, CAPACITY: 2 * length}
        streams, empty = [session.stream() for session in sessions], _empty(sessions[0], sizes)
        for first, end, cache in ((0, length, empty), (length, length + 1, {})):
            *inputs, _ = decoder.arguments(batch, end - first, first)
            taken = [x for x in inputs if x is not None]
            feeds: dict[str, Any] = dict(zip(decoder.input_names, taken, strict=False))
            feeds |= {"input_ids": tokens[:, first:end], **cache}
            feeds.pop(KEPT, None)
            with torch.no_grad():
                expected = model(tokens[:, :end]).logits[:, first:]
            for rank, logits in enumerate(_logits(streams, feeds)):
                error, limit = difference(logits, expected)
                if not error <= limit:
                    raise ConversionError(
                        f"rank {rank} of {len(folders)} differs from torch: logits by {error:.3g} "
                        f"for {batch} × {end - first} tokens after {first}",
                        advice="the plan may split layers that the model computes together",
                    )


def _empty(session: Session, sizes: Mapping[Any, int]) -> dict[str, Array]:
    """Return a cache without tokens."""
    return {
        info.name: np.zeros([sizes.get(d, d) for d in info.dims], info.numpy_dtype)
        for info in session.state_inputs
    }


def _logits(streams: Sequence[Any], feeds: Mapping[str, Any]) -> list[Any]:
    """Run ranks, each of which waits for the others."""
    with ThreadPoolExecutor(len(streams)) as threads:
        return list(threads.map(lambda stream: stream.run(**feeds)["logits"], streams))


def _folders(folder: Path) -> list[Path]:
    """Return the folders of the ranks.

    Raises:
        GenerationError: If there are none.
    """
    count = sum(1 for _ in folder.glob(_FOLDER.format("*")))
    folders = [folder / _FOLDER.format(rank) for rank in range(count)]
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
        for place in _folders(Path(folder)):
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
