"""Compare llama.cpp's greedy tokens of files of ``coreai-onnx to-gguf`` with those of the folders.

    make test-llama-cpp

Small random models of each architecture, in floats and in codes of the quantizer; a Llama that was
trained; and Gemma 3 270M, if `make quickstart-llm` has exported it. llama.cpp is that of
``xllamacpp``, in an environment of its own.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import venv
from collections.abc import Iterator
from pathlib import Path

from gguf import GGMLQuantizationType as Type

from coreai_onnx.huggingface import export_model
from coreai_onnx.huggingface.generation import generate
from coreai_onnx.huggingface.checkpoints.gguf.writing import write_gguf
from coreai_onnx.huggingface.sources import read_config
from coreai_onnx.messages import render

REPO = Path(__file__).resolve().parent.parent
ENVIRONMENT = REPO / "build" / "llama-cpp-env"
XLLAMACPP = "xllamacpp==2026.10.11549"
TOKENS = 12
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
        "temperature": 0, "top_k": 1, "cache_prompt": False})
    answers.append([result["choices"][0]["text"], result["usage"]["prompt_tokens"]])
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


def answers(path: Path, prompts: tuple[str, ...]) -> list[tuple[str, int]]:
    """Return llama.cpp's greedy continuations, and the numbers of tokens of the prompts."""
    command = [python(), "-c", WORKER, path, json.dumps(prompts), str(TOKENS)]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    line = next((one for one in run.stdout.splitlines() if one.startswith("ANSWERS")), None)
    if line is None:
        sys.exit(f"llama.cpp does not run {path.name}:\n{run.stderr[-2000:]}")
    return [(text, count) for text, count in json.loads(line.removeprefix("ANSWERS"))]


def compared(name: str, folder: Path, prompts: tuple[str, ...]) -> tuple[object, ...]:
    """Write a folder as GGUF; return a row with how many prompts are continued alike."""
    import transformers

    path = folder.parent / f"{folder.name}.gguf"
    config = read_config(folder / "config.json")
    kinds = {tensor.type.name for tensor in write_gguf(folder / "model.onnx", config, path)}
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)
    alike = same_count = 0
    for prompt, (theirs, count) in zip(prompts, answers(path, prompts), strict=True):
        ours = generate(folder, prompt, max_new_tokens=TOKENS, do_sample=False)
        same_count += len(tokenizer(prompt)["input_ids"]) == count
        # Either may end at a token that ends a text, or leave out what it stands for.
        alike += bool(ours.startswith(theirs) or theirs.startswith(ours))
        if not (ours.startswith(theirs) or theirs.startswith(ours)):
            print(f"  {name}: {prompt!r}\n    ours      {ours!r}\n    llama.cpp {theirs!r}")
    number = len(prompts)
    return (name, " ".join(sorted(kinds)), f"{same_count}/{number}", f"{alike}/{number}")


def rows(root: Path) -> Iterator[tuple[object, ...]]:
    """Yield a row for each model."""
    sys.path.insert(0, str(REPO))
    from tests.huggingface.checkpoints.gguf.files import CONFIGS, write_model
    from tests.support.huggingface_folders import DOCSTRING_LLAMA

    for architecture in CONFIGS:
        source = root / f"{architecture}.gguf"
        write_model(source, architecture, (Type.F32,))
        for number, (name, quantization) in enumerate(QUANTIZATIONS.items()):
            folder = root / f"{architecture}_{number}"
            export_model(source, folder, quantization=quantization, check=False)
            yield compared(f"{architecture}, {name}", folder, LETTERS)
    for name, quantization in list(QUANTIZATIONS.items())[:2]:
        folder = root / f"docstrings_{len(name)}"
        export_model(DOCSTRING_LLAMA, folder, quantization=quantization, check=False)
        yield compared(f"a trained Llama, {name}", folder, CODE)
    if (gemma := REPO / "build" / "quickstart-llm" / "onnx").is_dir():
        yield compared("Gemma 3 270M, Q4_K_M", gemma, QUESTIONS)


def main() -> None:
    """Print the table; exit with 1 if a prompt is continued in another way."""
    header = ("model", "types", "tokens of prompts", "continued alike")
    with tempfile.TemporaryDirectory() as folder:
        table = list(rows(Path(folder)))
    print(render(header, table))
    differs = [row for row in table if any(a != b for a, b in (r.split("/") for r in row[2:]))]
    sys.exit(bool(differs))


if __name__ == "__main__":
    main()
