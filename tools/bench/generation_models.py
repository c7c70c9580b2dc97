"""The model of the generation benchmark, for this project and for others."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import transformers

import coreai_onnx
from coreai_onnx.huggingface.decoders import Decoder
from tools.bench.generation_worker import HEAD_DIM, SOURCE, VOCABULARY

SIZES: Mapping[str, Mapping[str, int]] = {
    "100m": {"hidden_size": 768, "intermediate_size": 2048, "num_attention_heads": 12,
             "num_key_value_heads": 4},
    "600m": {"hidden_size": 2048, "intermediate_size": 5632, "num_attention_heads": 32,
             "num_key_value_heads": 8},
}  # fmt: skip
"""Models of 12 layers by their number of parameters."""
_GGUF = Path(__file__).with_name("generation_gguf.py")


@dataclass
class Peer:
    """One implementation.

    Attributes:
        name: Its name in the tables.
        build: Writes its file; None if it needs none.
        worker: What `generation_worker.py` is given; the path is relative to the folder.
        environment: The key of the environment that runs it.
        needs: The key of the environment that is needed to write or to run the file.
        is_ours: Whether it is a file of this project.
        wrong: Why it is missing.
    """

    name: str
    build: Callable[[Path, Mapping[str, str]], None] | None
    worker: dict[str, Any]
    environment: str = "project"
    is_ours: bool = False
    needs: str = ""
    wrong: str = ""
    facts: dict[str, float] = field(default_factory=dict)


def config(size: str) -> transformers.LlamaConfig:
    """Return the configuration of a size."""
    return transformers.LlamaConfig(
        vocab_size=VOCABULARY, num_hidden_layers=12, head_dim=HEAD_DIM,
        max_position_embeddings=4096, **SIZES[size],
    )  # fmt: skip


def write_source(folder: Path, size: str = "100m") -> None:
    """Write the model as transformers does, with a tokenizer, which genai's builder demands."""
    from tokenizers import Tokenizer, models

    torch.manual_seed(0)
    transformers.LlamaForCausalLM(config(size)).eval().save_pretrained(folder)
    words = models.WordLevel({f"w{i}": i for i in range(VOCABULARY)}, unk_token="w0")
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(words), unk_token="w0", bos_token="w1", eos_token="w2"
    ).save_pretrained(folder)


def ours(cache: str, target: str, *, kernels: bool) -> Peer:
    """Return an exported folder of this project."""
    name = f"coreai_onnx_{cache}_{target}"

    def build(folder: Path, environments: Mapping[str, str]) -> None:
        del environments
        options: dict[str, Any] = {"cache": cache, "target": target, "check": False}
        coreai_onnx.export_model(folder / SOURCE, folder / name, **options)

    worker = {"kind": "file", "path": f"{name}/model.onnx", "shared": cache == "static"}
    if kernels:
        worker["library"] = str(coreai_onnx.ops_library_path())
    how = "kernels" if kernels else "stock onnxruntime"
    how += "" if target == "onnxruntime" else f", {target}"
    return Peer(f"coreai_onnx, {cache}, {how}", build, worker, is_ours=True)


def torch_onnx(folder: Path, environments: Mapping[str, str]) -> None:
    """Export with torch's exporter, opset 23, with a growing cache as inputs and outputs."""
    del environments
    decoder = Decoder(transformers.AutoModelForCausalLM.from_pretrained(folder / SOURCE).eval())
    program = torch.onnx.export(
        decoder,
        decoder.example(torch.float32),
        input_names=decoder.input_names,
        output_names=decoder.output_names,
        dynamic_shapes=decoder.dynamic_shapes(),
        opset_version=23,
        dynamo=True,
        verbose=False,
    )
    assert program is not None
    (folder / "torch_onnx").mkdir()
    program.save(folder / "torch_onnx" / "model.onnx", external_data=True)


def genai(folder: Path, environments: Mapping[str, str], *, precision: str = "fp32") -> None:
    """Run the builder of onnxruntime-genai."""
    module = [environments["genai"], "-m", "onnxruntime_genai.models.builder", "-i", SOURCE]
    _run([*module, "-o", "genai", "-p", precision, "-e", "cpu", "-c", "genai_cache"], folder)


def optimum(folder: Path, environments: Mapping[str, str]) -> None:
    """Export with optimum."""
    command = [environments["optimum"], "-m", "optimum.commands.optimum_cli", "export", "onnx"]
    task = ["--task", "text-generation-with-past", "--no-post-process"]
    _run([*command, "-m", SOURCE, *task, "optimum"], folder)


def mobius(folder: Path, environments: Mapping[str, str]) -> None:
    """Build with mobius-onnx, for the CPU."""
    program = (
        "import sys, pathlib, transformers, onnx_ir; from tools.bench.mobius import graph_of; "
        "model = transformers.AutoModelForCausalLM.from_pretrained(sys.argv[1]); "
        "pathlib.Path('mobius').mkdir(); "
        "onnx_ir.save(graph_of(model, 'cpu'), 'mobius/model.onnx', external_data='model.onnx.data')"
    )
    path = [
        environments["mobius"],
        str(Path(__file__).parents[2]),
        os.environ.get("PYTHONPATH", ""),
    ]
    _run([sys.executable, "-c", program, SOURCE], folder, PYTHONPATH=":".join(path))


def gguf(folder: Path, environments: Mapping[str, str], *, quantization: str = "F32") -> None:
    """Write the weights as GGUF."""
    command = [environments["llama.cpp"], str(_GGUF), SOURCE, "model.gguf"]
    _run([*command, quantization], folder)


def peers(environments: Mapping[str, str]) -> list[Peer]:
    """Return all implementations; those without an environment are marked as missing."""
    file: dict[str, Any] = {"kind": "file"}
    found = [
        Peer("transformers, eager", None, {"kind": "torch", "path": SOURCE}),
        Peer("torch.compile", None, {"kind": "torch", "path": SOURCE, "compiled": True}),
        Peer("torch.onnx, opset 23", torch_onnx, {**file, "path": "torch_onnx/model.onnx"}),
        Peer(
            "onnxruntime-genai's builder",
            genai,
            {**file, "path": "genai/model.onnx", "shared": True},
            needs="genai",
        ),
        Peer(
            "mobius-onnx",
            mobius,
            {**file, "path": "mobius/model.onnx", "shared": True},
            needs="mobius",
        ),
        Peer("optimum", optimum, {**file, "path": "optimum/model.onnx"}, needs="optimum"),
        Peer(
            "llama.cpp",
            gguf,
            {"kind": "llama.cpp", "path": "model.gguf"},
            "llama.cpp",
            needs="llama.cpp",
        ),
        ours("growing", "onnxruntime", kernels=False),
        ours("static", "onnxruntime", kernels=False),
        ours("growing", "contrib", kernels=False),
        ours("static", "contrib", kernels=False),
        ours("growing", "onnxruntime", kernels=True),
        ours("static", "onnxruntime", kernels=True),
    ]
    return mark_missing(found, environments)


def mark_missing(found: list[Peer], environments: Mapping[str, str]) -> list[Peer]:
    """Mark the implementations whose environment is not given."""
    for peer in found:
        if peer.needs and peer.needs not in environments:
            peer.wrong = f"missing: --environment {peer.needs}=…"
    return found


def prepare(peer: Peer, folder: Path, environments: Mapping[str, str]) -> None:
    """Write the file of an implementation unless it is there; record the time and the size."""
    path = folder / str(peer.worker["path"])
    took = folder / f"{path.relative_to(folder).parts[0]}.seconds"
    if peer.build is not None and not took.exists():
        begin = time.perf_counter()
        peer.build(folder, environments)
        took.write_text(str(time.perf_counter() - begin))
    if took.exists():
        peer.facts["export_s"] = float(took.read_text())
    files = path.parent.iterdir() if path.suffix == ".onnx" else [path]
    if path.is_file():
        peer.facts["size_mib"] = sum(one.stat().st_size for one in files) / 2**20


def _run(command: list[str], folder: Path, **environment: str) -> None:
    variables = {**os.environ, **environment}
    done = subprocess.run(
        command, cwd=folder, env=variables, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RuntimeError(done.stderr.strip().rpartition("\n")[2])
