"""Our files beside the hand-written graphs of mobius-onnx: nodes, and latency in onnxruntime.

    pip install --no-deps --target /tmp/mobius mobius-onnx onnx-shape-inference
    PYTHONPATH=/tmp/mobius python -m tools.bench.mobius
    PYTHONPATH=/tmp/mobius python -m tools.bench.mobius --models llama --layers 12 --rounds 50

mobius-onnx builds a graph from a configuration, for a list of architectures; it is installed apart,
since it is no part of the project and brings versions of its own. The models are those of
tests/models, its weights those of ours. Its graphs have a cache, which is fed empty, and give it
back; so do ours marked with a cache. Counted are the nodes of the main graph and those that
onnxruntime's own optimizer leaves; outputs are compared before anything is measured.
"""

from __future__ import annotations

import argparse
import importlib
import statistics
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import torch
import transformers
from transformers.cache_utils import DynamicCache

import coreai_onnx
from coreai_onnx import OnnxProgram
from tests.models.zoo import named
from tools.bench.latency import File

MODELS = ("llama", "qwen3_moe")
TARGETS = ("onnxruntime", "contrib")
PROVIDERS = ("default", "cpu")


class WithCache(torch.nn.Module):
    """A language model that takes keys and values of earlier tokens, and gives all of them back."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: torch.Tensor, past: list[Any]) -> tuple[torch.Tensor, list[Any]]:
        """Run one step."""
        cache = DynamicCache(config=self.model.config)
        for layer, (keys, values) in enumerate(past):
            cache.update(keys, values, layer)
        result = self.model(input_ids=input_ids, past_key_values=cache, use_cache=True)
        kept = [(layer.keys, layer.values) for layer in result.past_key_values.layers]
        return result.logits, kept


def main() -> int:
    """Build, compare, measure, and print one table per model."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--models", nargs="+", default=MODELS, choices=MODELS)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--length", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=300)
    options = parser.parse_args()
    try:
        importlib.import_module("mobius")
    except ImportError as error:
        print(f"{error}: install mobius-onnx apart, as the head of {__file__} shows")
        return 2
    warnings.filterwarnings("ignore")
    print(f"onnxruntime {ort.__version__}, one thread, {options.layers} layers")
    for name in options.models:
        with tempfile.TemporaryDirectory() as folder:
            run(name, Path(folder), options)
    return 0


def run(name: str, folder: Path, options: argparse.Namespace) -> None:
    """Make the files of one model and measure them in turns."""
    model = build(name, options.layers)
    torch.manual_seed(0)
    ids = torch.randint(4, model.config.vocab_size, (1, options.length))
    files = [ours(model, folder, target, cached) for target in TARGETS for cached in (False, True)]
    files += [mobius(model, folder, provider) for provider in PROVIDERS]
    feeds = [started(file, model, ids, folder) for file in files]
    for _ in range(options.rounds):
        for file, given in zip(files, feeds, strict=True):
            begin = time.perf_counter()
            file.session.run(None, given)
            file.times.append(time.perf_counter() - begin)
    report(name, files)


def build(name: str, layers: int) -> torch.nn.Module:
    """Return the model of tests/models with another number of layers."""
    config = named(name).module().config
    config.num_hidden_layers, config.use_cache = layers, True
    torch.manual_seed(0)
    return transformers.AutoModelForCausalLM.from_config(config).eval()


def ours(model: torch.nn.Module, folder: Path, target: str, cached: bool) -> File:
    """Convert with or without a cache."""
    label = f"coreai_onnx, {target}{', with a cache' if cached else ''}"
    file = File(label, folder / f"{target}_{cached}.onnx")
    batch, length, past = (torch.export.Dim(n) for n in ("batch", "seq", "past"))
    ids = torch.randint(4, 100, (2, 3))
    if cached:
        shape, count = cache_shape(model, 2, 7), model.config.num_hidden_layers
        given = [(torch.randn(shape), torch.randn(shape)) for _ in range(count)]
        dims = [({0: batch, 2: past}, {0: batch, 2: past}) for _ in given]
        program: OnnxProgram = coreai_onnx.convert(
            WithCache(model).eval(),
            (ids, given),
            dynamic_shapes=({0: batch, 1: length}, dims),
            optimize=False,
        )
    else:
        model.config.use_cache = False
        shapes = {"input_ids": {0: batch, 1: length}}
        program = coreai_onnx.convert(
            model, kwargs={"input_ids": ids}, dynamic_shapes=shapes, optimize=False
        )
        model.config.use_cache = True
    program.optimize(target=target).save(file.path)
    file.nodes = len(program.model.graph)
    return file


def mobius(model: torch.nn.Module, folder: Path, provider: str) -> File:
    """Build mobius's graph for an execution provider, with the weights of ours."""
    graph = graph_of(model, provider)
    file = File(f"mobius-onnx, {provider}", folder / f"mobius_{provider}.onnx")
    onnx.save(onnx_proto(graph), file.path)
    file.nodes = len([node for node in graph.graph if node.op_type != "Constant"])
    return file


def graph_of(model: torch.nn.Module, provider: str) -> Any:
    """Return mobius's graph for an execution provider, with the weights of a model."""
    builder = importlib.import_module("mobius._builder")
    registry = importlib.import_module("mobius._registry").registry
    weights = importlib.import_module("mobius._weight_loading")
    kind = importlib.import_module("mobius._configs").ArchitectureConfig
    config = kind.from_transformers(model.config)
    module = registry.get(model.config.model_type)(config)
    graph = builder.build_from_module(module, config, execution_provider=provider)["model"]
    weights.apply_weights(graph, module.preprocess_weights(experts_apart(model)))
    return graph


def onnx_proto(model: Any) -> onnx.ModelProto:
    """Return the protobuf of a model of onnx_ir."""
    proto: onnx.ModelProto = importlib.import_module("onnx_ir").to_proto(model)
    return proto


def experts_apart(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Return the weights, each expert's matrices under the names they have in checkpoints."""
    found = {}
    for name, tensor in model.state_dict().items():
        if ".experts." not in name:
            found[name] = tensor
            continue
        prefix, _, kind = name.rpartition(".")
        for index, matrix in enumerate(tensor):
            parts = {"down_proj": matrix}
            if kind == "gate_up_proj":
                parts = dict(zip(("gate_proj", "up_proj"), matrix.chunk(2), strict=True))
            for part, values in parts.items():
                found[f"{prefix}.{index}.{part}.weight"] = values.contiguous()
    return found


def cache_shape(model: torch.nn.Module, batch: int, length: int) -> tuple[int, ...]:
    """Return the shape of the keys of one layer."""
    config = model.config
    return batch, config.num_key_value_heads, length, config.head_dim


def started(
    file: File, model: torch.nn.Module, ids: torch.Tensor, folder: Path
) -> dict[str, np.ndarray]:
    """Make the session, hold its logits to the module's, and return what to feed it."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    options.optimized_model_filepath = str(folder / "optimized.onnx")
    file.session = ort.InferenceSession(str(file.path), options)
    file.left = len(onnx.load(folder / "optimized.onnx", load_external_data=False).graph.node)
    length = ids.shape[1]
    known = {
        "input_ids": ids.numpy(),
        "attention_mask": np.ones((1, length), np.int64),
        "position_ids": np.arange(length)[None],
    }
    empty = np.zeros(cache_shape(model, 1, 0), np.float32)
    given = {i.name: known.get(i.name, empty) for i in file.session.get_inputs()}
    with torch.no_grad():
        expected = model(input_ids=ids, use_cache=False).logits.numpy()
    worst = np.max(np.abs(file.session.run(None, given)[0] - expected) / (1 + np.abs(expected)))
    assert worst < 1e-4, f"{file.name} differs by {worst:.1e}"
    return given


def report(name: str, files: list[File]) -> None:
    """Print one table; ratios are to mobius's graphs."""
    peers = {file.name: file for file in files if file.name.startswith("mobius")}
    heads = " | ".join(f"nodes ÷, time × {peer.removeprefix('mobius-onnx, ')}" for peer in peers)
    print(f"\n| {name} | nodes | left by onnxruntime | min µs | median µs | {heads} |")
    print("|---|---:|---:|---:|---:|" + "---:|" * len(peers))
    for file in files:
        best, middle = min(file.times), statistics.median(file.times)
        ratios = " | ".join(
            f"{file.nodes / peer.nodes:.2f}, {min(peer.times) / best:.2f}"
            for peer in peers.values()
        )
        print(
            f"| {file.name} | {file.nodes} | {file.left} | {best * 1e6:.0f} | {middle * 1e6:.0f} "
            f"| {ratios} |"
        )


if __name__ == "__main__":
    sys.exit(main())
