"""Compare llama.cpp's greedy tokens of files of ``coreai-onnx to-gguf`` with those of the folders.

    make test-llama-cpp

Small random models of each architecture, in floats and in codes of the quantizer, mixtures of
experts also in the files that they came from; a Llama that was trained; and the file of Gemma 3
270M before and after, if `make quickstart-llm` has exported it.
llama.cpp is that of ``xllamacpp``, in an environment of its own. It rounds activations to 8 bits
where weights have few: tokens may differ where two are nearly as probable, and log-probabilities of
the first token by some hundredths.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import venv
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
import transformers
from gguf import GGMLQuantizationType as Type

from coreai_onnx.huggingface import export_model
from coreai_onnx.huggingface.checkpoints.gguf.header import read_header
from coreai_onnx.huggingface.checkpoints.gguf.writing import write_gguf
from coreai_onnx.huggingface.generation import generate
from coreai_onnx.huggingface.sources import load_source, read_config
from coreai_onnx.messages import render

REPO = Path(__file__).resolve().parent.parent
ENVIRONMENT = REPO / "build" / "llama-cpp-env"
XLLAMACPP = "xllamacpp==2026.10.11549"
TOKENS = 12
NEARLY = 0.1
"""A difference of log-probabilities of which the rounding of activations may be the reason."""
LETTERS = ("abcx", "hello", "ef", "quickfox")
QUESTIONS = ("The capital of France is", "  Two spaces, and 12345 + 678 = ", "Ça va? – 你好 🙂")
CODE = ("def add(first, second):", '    """Return the sum', "for name in names:\n")
QUANTIZATIONS = {
    "float32": None,
    "4 bits": {"bits": 4, "symmetric": True, "group_size": 32},
    "4 bits, zero points": {"bits": 4, "group_size": 64},
    "8 bits": {"bits": 8, "symmetric": True, "group_size": 32},
}
WORKER = """
import json, sys, xllamacpp
parameters = xllamacpp.CommonParams()
parameters.model.path, parameters.n_ctx, parameters.warmup = sys.argv[1], 512, False
server = xllamacpp.Server(parameters)
answers = []
for prompt in json.loads(sys.argv[2]):
    result = server.handle_completions({
        "prompt": prompt, "n_predict": int(sys.argv[3]), "max_tokens": int(sys.argv[3]),
        "temperature": 0, "top_k": 1, "logprobs": 5, "cache_prompt": False})
    content = result["choices"][0]["logprobs"]["content"]
    first = [[one["id"], one["logprob"]] for one in content[0]["top_logprobs"]]
    answers.append([[one["id"] for one in content], first, result["usage"]["prompt_tokens"]])
print("ANSWERS" + json.dumps(answers))
"""


def python() -> Path:
    """Return the interpreter of the environment with llama.cpp, which is made if it is missing."""
    path = ENVIRONMENT / "bin" / "python"
    if not (ENVIRONMENT / "ready").is_file():
        venv.create(ENVIRONMENT, clear=True, with_pip=True)
        subprocess.run([path, "-m", "pip", "install", "-qq", XLLAMACPP], check=True)
        (ENVIRONMENT / "ready").touch()
    return path


class Answer(NamedTuple):
    """A continuation by llama.cpp, with log-probabilities of its first token."""

    ids: list[int]
    first: list[tuple[int, float]]
    prompt_tokens: int


def answers(path: Path, prompts: tuple[str, ...]) -> list[Answer]:
    """Return llama.cpp's greedy continuations."""
    command = [str(python()), "-c", WORKER, str(path), json.dumps(prompts), str(TOKENS)]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    line = next((one for one in run.stdout.splitlines() if one.startswith("ANSWERS")), None)
    if line is None:
        sys.exit(f"llama.cpp does not run {path.name}:\n{run.stderr[-2000:]}")
    return [Answer(*one) for one in json.loads(line.removeprefix("ANSWERS"))]


@torch.no_grad()
def compared(
    name: str, folder: Path, prompts: tuple[str, ...], path: Path | None = None
) -> tuple[str, ...]:
    """Return a row of the table for a folder and its GGUF, which is written if there is none."""
    if path is None:
        path = folder.parent / f"{folder.name}.gguf"
        write_gguf(folder / "model.onnx", read_config(folder / "config.json"), path)
    kinds = {tensor.type.name for tensor in read_header(path).tensors.values()}
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)
    model = load_source(path).model

    def log_probabilities(ids: list[int]) -> torch.Tensor:
        logits: torch.Tensor = model(torch.tensor([ids])).logits[0, -1]
        return logits.double().log_softmax(-1)

    counts = same = alike = 0
    worst = 0.0
    for prompt, theirs in zip(prompts, answers(path, prompts), strict=True):
        ids = tokenizer(prompt)["input_ids"]
        counts += len(ids) == theirs.prompt_tokens
        ours = generate(folder, np.array([ids]), max_new_tokens=TOKENS, do_sample=False)
        ours = np.asarray(ours)[0, len(ids) :].tolist()
        first = log_probabilities(ids)
        worst = max(worst, *(abs(float(first[i]) - value) for i, value in theirs.first))
        pairs = enumerate(zip(ours, theirs.ids, strict=False))
        place = next((place for place, (a, b) in pairs if a != b), None)
        same += place is None
        if place is not None:
            now = log_probabilities(ids + ours[:place])
            alike += abs(float(now[ours[place]] - now[theirs.ids[place]])) < NEARLY
    number = len(prompts)
    tokens = f"{same}/{number}" + (f", {alike} at a tie" if alike else "")
    verdict = "ok" if same + alike == counts == number and worst < NEARLY else "differs"
    return (name, " ".join(sorted(kinds)), f"{counts}/{number}", tokens, f"{worst:.4f}", verdict)


def unchanged(name: str, folder: Path, path: Path) -> tuple[str, ...]:
    """Write a folder that came from a GGUF; return a row that compares it with that file.

    Through 18 layers, rounded activations change tokens: both files are run by llama.cpp.
    """
    original = folder.parent / "gemma-3-270m-q4_k_m.gguf"
    config = read_config(folder / "config.json")
    kinds = {tensor.type.name for tensor in write_gguf(folder / "model.onnx", config, path)}
    pairs = list(zip(answers(original, QUESTIONS), answers(path, QUESTIONS), strict=True))
    same = sum(before == after for before, after in pairs)
    worst = max(abs(a[1] - b[1]) for x, y in pairs for a, b in zip(x.first, y.first, strict=True))
    counts = f"{same}/{len(pairs)}"
    verdict = "ok" if same == len(pairs) else "differs"
    return (name, " ".join(sorted(kinds)), counts, counts, f"{worst:.4f}", verdict)


def rows(root: Path) -> Iterator[tuple[str, ...]]:
    """Yield a row for each model."""
    sys.path.insert(0, str(REPO))
    from tests.huggingface.checkpoints.gguf.files import CONFIGS, MIXTURES, write_model
    from tests.support.huggingface_folders import DOCSTRING_LLAMA

    for architecture in CONFIGS:
        source = root / f"{architecture}.gguf"
        write_model(source, architecture, (Type.F32,))
        for number, (name, quantization) in enumerate(QUANTIZATIONS.items()):
            folder = root / f"{architecture}_{number}"
            export_model(source, folder, quantization=quantization, check=False)
            yield compared(f"{architecture}, {name}", folder, LETTERS)
    for architecture in MIXTURES:
        for number, types in enumerate(((Type.Q8_0,), (Type.Q4_0, Type.Q5_1, Type.Q8_0))):
            source = root / f"{architecture}_experts_{number}.gguf"
            write_model(source, architecture, types, experts=True)
            folder = source.with_suffix("")
            export_model(source, folder, check=False)
            yield compared(f"{architecture}, experts", folder, LETTERS, source)
        source = root / f"{architecture}_experts.gguf"
        write_model(source, architecture, (Type.F32,), experts=True)
        for number, (name, quantization) in enumerate(QUANTIZATIONS.items()):
            folder = root / f"{architecture}_experts_of_ours_{number}"
            export_model(source, folder, quantization=quantization, check=False)
            yield compared(f"{architecture}, experts, {name}", folder, LETTERS)
    for name, quantization in list(QUANTIZATIONS.items())[:2]:
        folder = root / f"docstrings_{len(name)}"
        export_model(DOCSTRING_LLAMA, folder, quantization=quantization, check=False)
        yield compared(f"a trained Llama, {name}", folder, CODE)
    if (gemma := REPO / "build" / "quickstart-llm" / "onnx").is_dir():
        yield unchanged("Gemma 3 270M, Q4_K_M", gemma, root / "gemma.gguf")


def main() -> None:
    """Print the table; exit with 1 if a prompt is continued in another way."""
    transformers.utils.logging.disable_progress_bar()
    header = ("model", "types", "prompts", "same tokens", "log-probabilities", "")
    with tempfile.TemporaryDirectory() as folder:
        table = []
        for row in rows(Path(folder)):
            print(*row, flush=True)
            table.append(row)
    print(f"\n{render(header, table)}")
    sys.exit(any(row[-1] != "ok" for row in table))


if __name__ == "__main__":
    main()
