"""Counts the bits that differ between runs of the zoo's models that compute the same.

  python -m tools.sweep_determinism [ARCHITECTURE ...]            # docs/models.md
  python -m tools.sweep_determinism --caches [ARCHITECTURE ...]   # decoders, in chunks
  python -m tools.sweep_determinism --cost [ARCHITECTURE ...]     # CPU time of usual sizes

Each model is optimized with ``target="kernels", deterministic=True`` and run by
``session(deterministic=True)``. With ``--caches``, decoders are exported with growing, static and
paged caches, and their logits are compared with each other as well. With ``--cost``, sessions of
deterministic files are timed in turn with those of ``target="kernels"``, on one thread.

Prints a table by model; ``docs/determinism.md`` has the last result.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, get_args

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np
import torch
import transformers

import coreai_onnx
from coreai_onnx.debugging import Determinism, verify_determinism
from coreai_onnx.errors import CoreaiError
from coreai_onnx.targets.determinism import measured_ops, outside_ops
from tests.models.generators import GENERATORS
from tests.models.zoo import ARCHITECTURES

ROWS, LENGTH = 8, 17
CACHED_ROWS, CACHED_LENGTH = 5, 60
CHUNKS = (60, 1, 7, 32)
Cache = Literal["growing", "static", "paged"]
_BLOCK = 16


def program_of(folder: Path, model: Any, cache: Cache) -> coreai_onnx.OnnxProgram:
    """Export a decoder for deterministic sessions."""
    coreai_onnx.export_model(model, folder, cache=cache, target="kernels", check=False)
    program = coreai_onnx.OnnxProgram.load(folder / "model.onnx")
    program.optimize(target="kernels", deterministic=True)
    return program


def logits_of(session: Any, tokens: np.ndarray, chunk: int) -> np.ndarray:
    """Return the logits of all tokens, read in chunks by a decoder with any cache."""
    batch, length = tokens.shape
    width = -(-length // _BLOCK) + 1
    names = {one.name for one in session.inputs}
    # Blocks are in no order.
    blocks = np.random.default_rng(1).permutation(batch * width).reshape(batch, width)
    stream, parts = session.stream(), []
    for start in range(0, length, chunk):
        end = min(length, start + chunk)
        feeds = {
            "input_ids": tokens[:, start:end],
            "block_table": blocks,
            "cache_lengths": np.full(batch, start),
            "attention_mask": np.ones((batch, end), np.int64),
            "position_ids": np.tile(np.arange(start, end), (batch, 1)),
        }
        feeds = {name: value for name, value in feeds.items() if name in names}
        if start == 0:
            sizes = {"batch_size": batch, "max_length": length + 3, "blocks": batch * width + 2}
            for name, info in zip(session.states, session.state_inputs, strict=True):
                shape = [sizes.get(dim, 0) if isinstance(dim, str) else dim for dim in info.dims]
                feeds[name] = np.zeros(shape, info.numpy_dtype)
        parts.append(np.array(stream.run(**feeds)["logits"]))
    return np.concatenate(parts, 1)


def random_tokens(rows: int, length: int) -> np.ndarray:
    """Return tokens that every vocabulary of the zoo has."""
    return np.random.default_rng(0).integers(4, 60, (rows, length))


def compare_caches(programs: dict[Cache, coreai_onnx.OnnxProgram]) -> tuple[int, int]:
    """Return how many logits of decoders with other caches, and in chunks, differ, and of how many.

    All are compared with those of the first decoder, for the whole prompt.
    """
    tokens = random_tokens(CACHED_ROWS, CACHED_LENGTH)
    expected, differ, compared = None, 0, 0
    for program in programs.values():
        session = coreai_onnx.session(program, deterministic=True)
        for chunk in CHUNKS:
            actual = logits_of(session, tokens, chunk)
            expected = actual if expected is None else expected
            differ += int((actual.view(np.uint32) != expected.view(np.uint32)).sum())
            compared += actual.size
    return differ, compared


def _row(name: str, measured: str, found: list[Determinism], more: tuple[int, int]) -> str:
    """Return a row of the table, with the values that differ along each axis."""
    deviations = [one for each in found for one in each.deviations]
    differ: Counter[str] = Counter()
    for one in deviations:
        differ[one.axis] += one.elements
    differ["caches"] += more[0]
    compared = sum(one.compared for one in deviations) + more[1]
    axes = ", ".join(f"{n:,} by {axis}" for axis, n in differ.items() if n) or "0"
    nodes = sorted({one.node.split()[0] for one in deviations if one.node})
    return f"| {name} | {measured} | {compared:,} | {axes} {' '.join(nodes)} |"


def _listed(ops: dict[str, int]) -> str:
    return ", ".join(ops) or "–"


def _architectures(names: list[str]) -> Iterator[str]:
    for one in ARCHITECTURES:
        if names and one.name not in names:
            continue
        converter = coreai_onnx.TorchConverter()
        program = converter.add_exported_program(one.export(one.module())).to_onnx(opset_version=23)
        program.optimize(target="kernels", deterministic=True)
        if outside := outside_ops(program.model):
            yield f"| {one.name} | refused: {_listed(outside)} | | |"
            continue
        inputs = {name: x.numpy() for name, x in one.arguments(ROWS, LENGTH).items()}
        found = verify_determinism(program, inputs, deterministic=True)
        yield _row(one.name, _listed(measured_ops(program.model)), [found], (0, 0))


def _decoders(names: list[str]) -> Iterator[str]:
    for name, one in GENERATORS.items():
        if names and name not in names:
            continue
        with tempfile.TemporaryDirectory() as folder:
            try:
                programs = {
                    cache: program_of(Path(folder) / cache, one.module(), cache)
                    for cache in get_args(Cache)
                }
                outside = outside_ops(programs["paged"].model)
                if outside:
                    yield f"| {name} | refused: {_listed(outside)} | | |"
                    continue
                found = []
                for cache in ("growing", "static"):
                    tokens = random_tokens(CACHED_ROWS, CACHED_LENGTH)
                    inputs = {
                        "input_ids": tokens,
                        "attention_mask": np.ones_like(tokens),
                        "position_ids": np.tile(np.arange(CACHED_LENGTH), (CACHED_ROWS, 1)),
                    }
                    wanted = {x.name for x in coreai_onnx.session(programs[cache]).inputs}
                    inputs = {key: x for key, x in inputs.items() if key in wanted}
                    found.append(verify_determinism(programs[cache], inputs, deterministic=True))
                measured = _listed(measured_ops(programs["growing"].model))
                yield _row(name, measured, found, compare_caches(programs))
            except CoreaiError as error:
                yield f"| {name} | not run: {str(error).splitlines()[0]} | | |"


_IMAGE = (1, 3, 224, 224)
COSTS: dict[str, tuple[Any, tuple[int, ...]]] = {
    "resnet": (transformers.ResNetConfig(), _IMAGE),
    "convnext": (transformers.ConvNextConfig(), _IMAGE),
    "swin": (transformers.SwinConfig(), _IMAGE),
    "wav2vec2": (transformers.Wav2Vec2Config(num_hidden_layers=2), (1, 16000)),
    "mpnet": (transformers.MPNetConfig(num_hidden_layers=4), (1, 128)),
}
"""Configurations of usual sizes, and the shapes of their input."""
SECONDS = 20


def _costs(names: list[str]) -> Iterator[str]:
    for name, (config, shape) in COSTS.items():
        if names and name not in names:
            continue
        torch.manual_seed(0)
        model = transformers.AutoModel.from_config(config).eval()
        x = (
            torch.randint(4, 60, shape)
            if len(shape) == 2 and name == "mpnet"
            else torch.randn(shape)
        )
        sessions = []
        for deterministic in (True, False):
            program = coreai_onnx.convert(model, (x,))
            program.optimize(target="kernels", deterministic=deterministic)
            sessions.append(coreai_onnx.session(program, deterministic=deterministic, threads=1))
        times: tuple[list[float], list[float]] = ([], [])
        end = time.monotonic() + SECONDS
        while time.monotonic() < end or len(times[0]) < 5:
            for session, taken in zip(sessions, times, strict=True):
                start = time.process_time()
                session.run(x.numpy())
                taken.append(time.process_time() - start)
        least, median = ([one(taken) for taken in times] for one in (min, np.median))
        ratios = f"{least[0] / least[1]:.2f} | {median[0] / median[1]:.2f}"
        yield f"| {name} | {1e3 * least[0]:.1f} | {ratios} |"


def main() -> int:
    """Print the table."""
    names = [word for word in sys.argv[1:] if not word.startswith("--")]
    if "--cost" in sys.argv:
        print("| model | ms | ratio of minima | of medians |\n|---|---:|---:|---:|")
        for row in _costs(names):
            print(row, flush=True)
        return 0
    print(
        "| model | operators that only measurements vouch for | comparisons | values that differ |"
    )
    print("|---|---|---:|---|")
    for row in _decoders(names) if "--caches" in sys.argv else _architectures(names):
        print(row, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
