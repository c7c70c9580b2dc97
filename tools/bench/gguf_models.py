"""A language model in a GGUF file: this project, llama.cpp and onnxruntime-genai, in one run.

    PROMPT=256 python -m tools.bench.gguf_models MODEL.gguf FOLDER --threads 1 2 \\
        --environment llama.cpp=/llama/bin/python genai=/genai/bin/python --genai GENAI_FOLDER

FOLDER gets the exported file, with inputs of products as they are and rounded to 8 bits, unless it
has them, and a file of packed weights. Every implementation continues a prompt and predicts a text;
then steps are timed as by ``tools.bench.generation``. ``--exact FILE`` is the model in float32 (a
GGUF too), whose perplexity llama.cpp computes without rounding anything. The model of
onnxruntime-genai is a folder of its builder (``onnxruntime_genai.models.builder -p int4 -e cpu``),
made of the same weights: ``--float FOLDER`` writes them in float32 as a folder of transformers.
``--processes 8`` prints how much memory that many processes of each implementation share (Linux).
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from pathlib import Path
from typing import Any

import torch
import transformers

import coreai_onnx
from coreai_onnx.messages import render
from coreai_onnx.model.inventory import standard_op_types
from coreai_onnx.program import OnnxProgram
from tools.bench.generation import measure, started
from tools.bench.generation_models import Peer, mark_missing

FOLDERS = {"float32": None, "rounded": {"activation_bits": 8}}
"""The exported folders, by the arguments of their quantization."""
PROMPT_TEXT, CONTINUED = "The capital of France is", 12
TEXT = """\
Alice was beginning to get very tired of sitting by her sister on the bank, and of having nothing to
do: once or twice she had peeped into the book her sister was reading, but it had no pictures or
conversations in it, "and what is the use of a book," thought Alice, "without pictures or
conversations?"

So she was considering in her own mind (as well as she could, for the hot day made her feel very
sleepy and stupid), whether the pleasure of making a daisy-chain would be worth the trouble of
getting up and picking the daisies, when suddenly a White Rabbit with pink eyes ran close by her.

There was nothing so very remarkable in that; nor did Alice think it so very much out of the way to
hear the Rabbit say to itself, "Oh dear! Oh dear! I shall be late!" (when she thought it over
afterwards, it occurred to her that she ought to have wondered at this, but at the time it all
seemed quite natural); but when the Rabbit actually took a watch out of its waistcoat-pocket, and
looked at it, and then hurried on, Alice started to her feet, for it flashed across her mind that
she had never before seen a rabbit with either a waistcoat-pocket, or a watch to take out of it, and
burning with curiosity, she ran across the field after it, and fortunately was just in time to see
it pop down a large rabbit-hole under the hedge.

The ferry at the bend of the river carries eleven cars and, on market days, a good many sheep. Its
engine was built in 1961 and has been replaced twice; the bell has not. Whoever arrives after dark
rings it three times, waits until a lamp moves on the other bank, and then waits again, since the
ferryman finishes his tea before he unties the rope. In spring the water rises by two meters, the
landing stage disappears, and the crossing takes forty minutes instead of nine. Nobody complains:
the bridge, which is a day's ride to the south, was closed when its middle arch began to lean, and
the engineers who came to measure it went home with photographs of herons.

When the council asked what a new boat would cost, three shipyards answered. The first wanted half
of the money before drawing a line; the second offered a hull of steel with an electric motor, which
would have to be charged through a cable longer than the village; the third sent a retired captain,
who looked at the old hull for an afternoon, knocked on every plank, and wrote on the back of a
ticket that it would last for another thirty years if somebody painted it.
"""
"""The beginning of a book of 1865, and a text of our own."""


def main() -> int:
    """Compare what the implementations predict, then measure."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--environment", nargs="*", default=[], metavar="NAME=PATH")
    parser.add_argument("--exact", type=Path, help="the model in float32, as GGUF")
    parser.add_argument("--genai", type=Path, help="the folder of onnxruntime-genai")
    parser.add_argument("--float", type=Path, help="only write the weights in float32 here")
    parser.add_argument("--no-texts", action="store_true", help="only measure")
    parser.add_argument("--threads", type=int, nargs="+", default=[1])
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--processes", type=int, help="only measure the memory of so many")
    options = parser.parse_args()
    if options.float:
        write_floats(options.model, options.float)
        return 0
    for name, quantization in FOLDERS.items():
        if not (folder := options.folder / name).exists():
            coreai_onnx.export_model(
                options.model, folder, target="kernels", check=False, quantization=quantization
            )
    environments = dict(one.split("=", 1) for one in options.environment)
    found = mark_missing(peers(options.model, options.folder, options.genai), environments)
    exact = [llama_cpp("llama.cpp, float32", options.exact)] if options.exact else []
    if not (options.no_texts or options.processes):
        compare(found + mark_missing(exact, environments), environments)
    for peer in found:
        if peer.is_ours:  # as `coreai_onnx.Session` does
            model = OnnxProgram.load(peer.worker["path"]).model
            peer.worker["op_types"] = ",".join(standard_op_types(model))
    if options.processes:
        print(shared_memory(found, environments, options.processes), flush=True)
        return 0
    for threads in options.threads:
        measure(found, Path.cwd(), environments, threads, options.rounds)
    return 0


def write_floats(model: Path, folder: Path) -> None:
    """Write the weights of a GGUF file, dequantized by transformers."""
    names = {"pretrained_model_name_or_path": model.absolute().parent, "gguf_file": model.name}
    loaded = transformers.AutoModelForCausalLM.from_pretrained(**names, dtype=torch.float32)
    # transformers refuses to save what it dequantized; a model of these weights it saves.
    del loaded.config.quantization_config
    plain = transformers.AutoModelForCausalLM.from_config(loaded.config)
    plain.load_state_dict(loaded.state_dict())
    plain.save_pretrained(folder)
    transformers.AutoTokenizer.from_pretrained(**names).save_pretrained(folder)


def peers(model: Path, folder: Path, genai: Path | None) -> list[Peer]:
    """Return the implementations."""
    ours: dict[str, Any] = {"kind": "file", "library": str(coreai_onnx.ops_library_path())}
    files = {name: (name, {}) for name in FOLDERS}
    packed = {"packed_weights": str(folder.absolute() / "packed")}
    files["rounded, packed_weights"] = ("rounded", packed)
    theirs: dict[str, Any] = {"kind": "genai", "path": str(genai and genai.absolute())}
    wrong = "" if genai else "missing: --genai FOLDER"
    return [
        *(
            Peer(
                f"coreai_onnx, {name}",
                None,
                {**ours, "path": str(folder.absolute() / place / "model.onnx"), **more},
                is_ours=True,
            )
            for name, (place, more) in files.items()
        ),
        llama_cpp("llama.cpp", model),
        Peer("onnxruntime-genai", None, theirs, "genai", needs="genai", wrong=wrong),
    ]


def llama_cpp(name: str, model: Path) -> Peer:
    """Return llama.cpp with a file."""
    worker = {"kind": "llama.cpp", "path": str(model.absolute())}
    return Peer(name, None, worker, "llama.cpp", needs="llama.cpp")


def compare(found: list[Peer], environments: dict[str, str]) -> None:
    """Print how each implementation continues the prompt, and its perplexity of the text."""
    rows = []
    for peer in found:
        if "packed_weights" in peer.worker:
            continue
        if peer.is_ours:
            folder = Path(peer.worker["path"]).parent
            perplexity = coreai_onnx.perplexity(folder, TEXT)
            made = coreai_onnx.generate(
                folder, PROMPT_TEXT, max_new_tokens=CONTINUED, do_sample=False
            )
        elif peer.wrong:
            perplexity, made = math.nan, peer.wrong
        else:
            running = started(peer, Path.cwd(), environments, 2)
            running.answer()
            request = {"prompt": PROMPT_TEXT, "text": TEXT, "count": CONTINUED}
            answer = running.ask(json.dumps(request))
            running.ask("end")
            perplexity = math.exp(math.fsum(answer["losses"]) / len(answer["losses"]))
            made = answer["continued"]
        rows.append([peer.name, f"{perplexity:.4f}", repr(made)])
    print(render(["", "perplexity", f"{PROMPT_TEXT} …"], rows), flush=True)


def shared_memory(found: list[Peer], environments: dict[str, str], count: int) -> str:
    """Return a table of the memory of one process, and of several that run at once."""
    rows = []
    for peer in [peer for peer in found if not peer.wrong]:
        running, sums = [], []
        for _ in range(count):
            running.append(started(peer, Path.cwd(), environments, 1))
            running[-1].answer()
            running[-1].time("decode")
            sums.append(sum(proportional_memory(one.process.pid) for one in running))
        for one in running:
            one.ask("end")
            one.process.wait()
        more = (sums[-1] - sums[0]) / max(1, count - 1)
        rows.append([peer.name, *(f"{kib / 1024:.0f} MiB" for kib in (sums[0], sums[-1], more))])
    return render(["", "one process", f"{count} processes", "each further one"], rows)


def proportional_memory(process: int) -> int:
    """Return the memory of a process in KiB; a page that several have counts in parts."""
    lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("Pss:"))


if __name__ == "__main__":
    sys.exit(main())
