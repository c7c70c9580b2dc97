"""Many clients of one engine: tokens a second, and seconds to the first token.

    python -m tools.bench.serving --folder /tmp/serving --threads 2

A Llama of 100 million parameters (see ``generation.py``) with a paged cache answers prompts of 128
tokens with 64 new ones, for 1, 4 and 16 clients that ask at once; beside
it, ``generate`` with a growing cache answers one prompt after the other. Each round measures all of
them in turn. The prompts are random; with ``--shared``, they begin with the same 500 tokens. Times
are those of the wall, and CPU times of the whole process, which hold with ``--threads 1``.

With ``--rate R``, ``--requests`` clients arrive in the intervals of a Poisson process instead, R a
second on average, the same for all.

With ``--gguf FILE``, the model is that of the file, beside it llama.cpp's server with the file, in
the environment ``--llama PYTHON`` with ``xllamacpp``, in the same rounds. With
``--openvino PYTHON``, an environment with ``openvino-genai`` and ``optimum-intel``, so is OpenVINO
GenAI's continuous batching; it rounds the floats of a GGUF file, which transformers reads with
``accelerate``, to 4 bits again.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from coreai_onnx.huggingface.generation import Engine, LanguageModel
from coreai_onnx.messages import render
from coreai_onnx.model.files.program_files import MODEL_FILE
from coreai_onnx.runtime.sessions.session import Session
from tools.bench.generation_worker import SOURCE, VOCABULARY
from tools.bench.serving_peers import Ask, measured

PROMPT, NEW, SHARED = 128, 64, 500
FILES: dict[str, dict[str, Any]] = {
    "float32": {},
    "bfloat16": {"target": "kernels", "dtype": "bfloat16"},
    "4 bits": {"target": "kernels", "quantization": {"bits": 4}},
    "4 bits, bfloat16": {"target": "kernels", "dtype": "bfloat16", "quantization": {"bits": 4}},
    "4 bits, inputs rounded": {
        "target": "kernels",
        "quantization": {"bits": 4, "activation_bits": 8},
    },
}
GGUF_FILES: dict[str, dict[str, Any]] = {
    "codes of the file": {"target": "kernels"},
    "codes of the file, bfloat16": {"target": "kernels", "dtype": "bfloat16"},
    "codes of the file, inputs rounded": {
        "target": "kernels",
        "quantization": {"activation_bits": 8},
    },
    "4 bits of ours, bfloat16": {
        "target": "kernels",
        "dtype": "bfloat16",
        "quantization": {"bits": 4},
    },
    "4 bits of ours, inputs rounded": {
        "target": "kernels",
        "quantization": {"bits": 4, "activation_bits": 8},
    },
}
"""llama.cpp rounds the inputs of products of few bits."""


OPENVINO_FORMATS = {"float32": ["fp32"], "bfloat16": ["fp32"]}
"""The weights of OpenVINO's model, by the name of ours; of others, groups of 32 codes of 4 bits."""


def main() -> int:
    """Write the files, measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--folder", type=Path, required=True, help="for the files; kept")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 4, 16])
    parser.add_argument("--rate", type=float, help="clients that arrive in a second")
    parser.add_argument("--requests", type=int, default=64, help="clients of a round of --rate")
    parser.add_argument("--only", nargs="*", help="names of files")
    parser.add_argument("--gguf", type=Path, help="measure this model instead")
    parser.add_argument("--llama", type=Path, help="the python of llama.cpp's environment")
    parser.add_argument("--openvino", type=Path, help="the python of OpenVINO's environment")
    parser.add_argument("--shared", action="store_true", help="prompts with a common beginning")
    parser.add_argument("--no-kernels", action="store_true", help="a stock onnxruntime")
    options = parser.parse_args()
    if options.openvino and options.threads == 1:
        parser.error("--openvino needs --threads 2: its pipeline divides by zero with one")
    options.folder.mkdir(parents=True, exist_ok=True)
    rows = []
    for name in options.only or (GGUF_FILES if options.gguf else FILES):
        rows += measure(name, options)
    speeds = ["tokens/s", "per CPU second", "median"]
    print(render(["", "clients", *speeds, "first token", "95th", "next", "95th", "MiB"], rows))
    return 0


def measure(name: str, options: argparse.Namespace) -> list[list[str]]:
    """Return the rows of a file."""
    how = {"kernels": False if options.no_kernels else None, "threads": options.threads}
    growing = None
    if options.gguf is None and options.rate is None:
        growing = LanguageModel.open(written(options.folder, name, "growing"), **how)
    # Prompts are token ids: as the peers', it has no tokenizer, which takes 420 MiB for Gemma 3.
    paged = LanguageModel(
        Session(written(options.folder, name, "paged", options.gguf) / MODEL_FILE, **how)
    )
    slots = max(options.clients)
    tokens = slots * (PROMPT + NEW + (SHARED if options.shared else 0))
    # Like the peers', one for all rounds: their prompts have nothing in common.
    engine = paged.engine(slots=slots, tokens=tokens)
    peers = peers_of(name, options, [slots, options.threads, tokens])
    found: dict[Any, list[dict[str, Any]]] = {}
    for seed in range(options.rounds):
        draw = np.random.default_rng(seed)
        ids = prompts(1, draw, shared=options.shared)[0]
        if growing is not None:

            def alone(ids: list[int], count: int, seen: Callable[[], None]) -> None:
                growing.generate(ids, max_new_tokens=count, stop_ids=())
                for _ in range(count):
                    seen()

            found.setdefault("generate", []).append(measured(alone, [ids], [0.0], NEW))
        for clients in options.clients if options.rate is None else [options.requests]:
            asked = prompts(clients, draw, shared=options.shared)
            waits = np.zeros(clients)
            if options.rate is not None:
                waits = draw.exponential(1 / options.rate, clients).cumsum()
            key = clients if options.rate is None else f"{clients}, {options.rate:g} a second"
            results = {key: measured(clients_of(engine), asked, waits.tolist(), NEW)}
            for peer in peers:
                results[f"{peer.name}, {key}"] = peer.run(asked, waits.tolist())
            for one, result in results.items():
                found.setdefault(one, []).append(result)
    engine.close()
    return [row(name, str(key), runs) for key, runs in found.items()]


def row(name: str, key: str, runs: list[dict[str, Any]]) -> list[str]:
    """Return a row of the table."""
    totals = [sum(map(len, run["times"])) for run in runs]
    walls, cpus = (
        [total / run[clock] for total, run in zip(totals, runs, strict=True)]
        for clock in ("wall", "cpu")
    )
    speeds = [f"{x:.1f}" for x in (max(walls), max(cpus), statistics.median(cpus))]
    times = [one for run in runs for one in run["times"]]
    waits = [""] * 4
    if key != "generate":
        first = [one[0] for one in times]
        between = [after - before for one in times for before, after in itertools.pairwise(one)]
        waits = [
            f"{x:.3f} s" for found in (first, between) for x in (*np.quantile(found, [0.5, 0.95]),)
        ]
    return [name, key, *speeds, *waits, f"{max(run['peak'] for run in runs):.0f}"]


def clients_of(engine: Engine) -> Ask:
    """Return what asks an engine."""

    def ask(prompt: list[int], count: int, seen: Callable[[], None]) -> None:
        for _ in engine.submit(prompt, max_new_tokens=count, stop_ids=()):
            seen()

    return ask


class Peer:
    """A server of another project in a process of its own; see ``serving_peers.py``."""

    def __init__(
        self, kind: str, python: Path, model: Path, numbers: list[int], precision: str = ""
    ) -> None:
        """Start it, and wait until it has read the model."""
        self.name = f"{kind} {precision}".strip()
        worker = Path(__file__).with_name("serving_peers.py")
        self._process = subprocess.Popen(
            [python, worker, kind, model, *map(str, numbers), *precision.split()],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        assert self._read() == "ready\n"

    def run(self, asked: list[list[int]], waits: list[float]) -> dict[str, Any]:
        """Return what `measured` does."""
        assert self._process.stdin is not None
        print(json.dumps([asked, waits, NEW]), file=self._process.stdin, flush=True)
        answer: dict[str, Any] = json.loads(self._read())
        return answer

    def _read(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline()


def peers_of(name: str, options: argparse.Namespace, numbers: list[int]) -> list[Peer]:
    """Start the servers that were asked for."""
    peers = []
    if options.gguf and options.llama:
        peers.append(Peer("llama.cpp", options.llama, options.gguf, numbers))
    if options.openvino:
        model = openvino_folder(name, options)
        # By default, OpenVINO computes in bfloat16 where the processor does.
        precision = "f32" if name == "float32" else ""
        peers.append(Peer("openvino", options.openvino, model, numbers, precision))
    return peers


def openvino_folder(name: str, options: argparse.Namespace) -> Path:
    """Return the folder of OpenVINO's model, which is written unless it is there."""
    source = floats_of(options.folder, options.gguf)
    form = OPENVINO_FORMATS.get(name, ["int4", "--group-size", "32", "--ratio", "1.0"])
    path: Path = options.folder / f"openvino {form[0]}"
    if not path.exists():
        command = [options.openvino, "-m", "optimum.commands.optimum_cli", "export", "openvino"]
        task = ["--task", "text-generation-with-past", "--weight-format", *form]
        subprocess.run([*command, "--model", source, *task, path], check=True)
    return path


def written(folder: Path, name: str, cache: Any, gguf: Path | None = None) -> Path:
    """Return a folder, which is written unless it is there."""
    path = folder / f"{cache} {name}"
    if path.exists():
        return path
    # Here, as below: what serves needs no memory for exporting.
    from coreai_onnx.huggingface import export_model

    settings = GGUF_FILES[name] if gguf else FILES[name]
    is_quantized = "bits" in settings.get("quantization", {})
    source = floats_of(folder, gguf) if gguf is None or is_quantized else gguf
    export_model(source, path, cache=cache, check=False, **settings)
    return path


def floats_of(folder: Path, gguf: Path | None) -> Path:
    """Return the folder of the model in float32, which is written unless it is there."""
    path = folder / ("floats" if gguf else SOURCE)
    if path.exists():
        return path
    from tools.bench.generation_models import write_source
    from tools.bench.gguf_models import write_floats

    write_floats(gguf, path) if gguf else write_source(path)
    return path


def prompts(count: int, draw: np.random.Generator, *, shared: bool) -> list[list[int]]:
    """Return random prompts."""
    common = draw.integers(3, VOCABULARY, SHARED if shared else 0).tolist()
    return [common + draw.integers(3, VOCABULARY, PROMPT).tolist() for _ in range(count)]


if __name__ == "__main__":
    raise SystemExit(main())
