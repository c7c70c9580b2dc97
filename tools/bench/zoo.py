"""Every architecture of docs/models.md on the kernels, beside onnxruntime, torch and OpenVINO.

    python -m tools.bench.zoo
    python -m tools.bench.zoo --models llama vit --size 8 16 --threads 2 --dtype bfloat16
    python -m tools.bench.zoo --models bert_base vit_s encoder convnext_t resnet50 --size 1 128
    python -m tools.bench.zoo --ways kernels deterministic --width 8 --size 1 64 [--decode]

The models are those of tests/models, small, or with ``--width`` times as wide layers, and a few of
their usual sizes (`LARGE`). All ways of a model take turns on the same inputs; the time is that of
the process for one thread, and wall time for more. *kernels* is the file of the target `kernels`
with our library, *deterministic* the same for ``deterministic=True``, *stock* and *contrib* are
those of the default target and of `contrib` in a stock onnxruntime, *torch* is the module,
*openvino* the module as OpenVINO converts it, or our file where it cannot (openvino is a package of
the environment). ``--dtype int4`` quantizes the weights of our files; torch stays in float32.
``--decode`` exports decoders with a growing cache, and times a token after those of ``--size``.
Ratios are times divided by that of the kernels, of minima and of medians.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import onnxruntime as ort
import torch
import transformers

import coreai_onnx
from coreai_onnx import OnnxProgram, TorchConverter
from coreai_onnx.messages import render
from tests.models.architecture import Architecture, Inputs, batch_dims, ids, token_dims
from tests.models.generators import GENERATORS
from tests.models.zoo import ARCHITECTURES
from tools.bench.runners import (
    of_openvino_tensor,
    of_ort_value,
    openvino_graph,
    openvino_tensor,
    ort_value,
)

WAYS = ("kernels", "stock", "contrib", "torch", "torch.compile", "openvino")
CALLS = 5
"""The measured calls in each turn of a way."""
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "int4": torch.float32}
LIMITS = {"float32": 1e-3, "bfloat16": 0.1, "int4": float("inf")}
"""The largest difference from torch relative to the largest output: more is another result."""
PORTABLE_OPSET = 18
"""OpenVINO claims operators of later ones, such as Attention, that it cannot load."""
WIDTHS = frozenset(
    "conv_dim d_ff d_kv d_model decoder_ffn_dim decoder_hidden_size dim embed_dim embedding_size "
    "encoder_ffn_dim ffn_dim ffn_hidden_size head_dim hidden_dim hidden_size hidden_sizes "
    "intermediate_size kv_lora_rank linear_key_head_dim linear_value_head_dim "
    "moe_intermediate_size n_embd output_hidden_size pooler_hidden_size pooler_output_size "
    "projection_dim projection_size q_lora_rank qk_head_dim qk_nope_head_dim qk_rope_head_dim "
    "query_pre_attn_scalar shared_expert_intermediate_size v_head_dim word_embed_proj_dim".split()
)
"""The widths of layers in the configurations of transformers."""
Call = Callable[[], Any]


def _pictures(batch: int, length: int) -> Inputs:
    del length
    return {"pixel_values": torch.randn(batch, 3, 224, 224)}


def _rows(batch: int, length: int) -> Inputs:
    return {"src": torch.randn(batch, length, 512)}


def _encoder() -> torch.nn.Module:
    layer = torch.nn.TransformerEncoderLayer(512, 8, batch_first=True)
    return torch.nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)


def _vit() -> torch.nn.Module:
    shape = {"hidden_size": 384, "intermediate_size": 1536, "num_attention_heads": 6}
    return transformers.ViTModel(transformers.ViTConfig(**shape))


LARGE = (
    Architecture(
        "bert_base",
        lambda: transformers.BertModel(transformers.BertConfig(num_hidden_layers=6)),
        ids,
        token_dims(longest=512),
    ),
    Architecture("vit_s", _vit, _pictures, batch_dims()),
    Architecture("encoder", _encoder, _rows, token_dims("src", longest=512)),
    Architecture(
        "convnext_t",
        lambda: transformers.ConvNextForImageClassification(transformers.ConvNextConfig()),
        _pictures,
        batch_dims(),
    ),
    Architecture(
        "resnet50",
        lambda: transformers.ResNetForImageClassification(transformers.ResNetConfig()),
        _pictures,
        batch_dims(),
    ),
)
"""Models of their usual sizes."""
NAMED = {one.name: one for one in (*ARCHITECTURES, *LARGE)}


@dataclass(frozen=True)
class Setting:
    """What is measured of each model: batch and length, dtype, threads, and rounds."""

    size: tuple[int, int]
    dtype: str
    threads: int
    rounds: int

    @property
    def clock(self) -> Callable[[], float]:
        """The time of the process, which other processes change little; wall time of threads."""
        return time.process_time if self.threads == 1 else time.perf_counter


def main() -> None:
    """Measure, and print a row per architecture as it is there."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--models", nargs="+", choices=NAMED)
    parser.add_argument("--ways", nargs="+", default=WAYS, choices=(*WAYS, "deterministic"))
    parser.add_argument("--size", type=int, nargs=2, default=(1, 16), help="batch and length")
    parser.add_argument("--width", type=int, default=1, help="by which widths are multiplied")
    parser.add_argument("--dtype", choices=DTYPES, default="float32")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--decode", action="store_true", help="a token of decoders, in onnxruntime")
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    torch.set_num_threads(options.threads)
    setting = Setting(tuple(options.size), options.dtype, options.threads, options.rounds)
    zoo = [one.name for one in ARCHITECTURES if not options.decode or one.name in GENERATORS]
    rows = []
    for name in options.models or zoo:
        architecture = widened(NAMED[name], options.width)
        makers = (decoding if options.decode else reading)(architecture, setting)
        with torch.inference_mode():
            times = measured({way: makers[way] for way in options.ways}, setting)
        rows.append((name, *columns(times)))
        print(*rows[-1], sep=" | ", flush=True)
    print(render(("", "kernels µs", *options.ways[1:], "slower than"), rows))


def widened(architecture: Architecture, factor: int) -> Architecture:
    """Return an architecture with wider layers; those without a configuration stay as they are."""

    def make() -> torch.nn.Module:
        module = architecture.make()
        if factor == 1 or not hasattr(module, "config"):
            return module
        for config in _configurations(module.config):
            for name, value in vars(config).items():
                if name in WIDTHS and isinstance(value, list | tuple):
                    setattr(config, name, type(value)(factor * one for one in value))
                elif name in WIDTHS and value is not None:
                    setattr(config, name, factor * value)
        return type(module)(module.config)

    return replace(architecture, make=make)


def _configurations(config: Any) -> Iterator[Any]:
    yield config
    for value in vars(config).values():
        if isinstance(value, transformers.PreTrainedConfig):
            yield from _configurations(value)


def reading(architecture: Architecture, setting: Setting) -> dict[str, Callable[[], Call]]:
    """Return what prepares each way to run a model on whole inputs."""
    dtype = DTYPES[setting.dtype]
    module = architecture.module(dtype)
    exported = architecture.export(module, dtype)
    arguments = architecture.arguments(*setting.size, dtype)

    def converted(opset: int | None = None) -> OnnxProgram:
        program = TorchConverter().add_exported_program(exported).to_onnx(opset_version=opset)
        return program.quantize(4) if setting.dtype == "int4" else program

    def opened(target: Any, **settings: bool) -> Call:
        return _opened(converted(), target, arguments, setting, **settings)

    return {
        "kernels": lambda: opened("kernels"),
        "deterministic": lambda: opened("kernels", deterministic=True),
        "stock": lambda: opened("onnxruntime", kernels=False),
        "contrib": lambda: opened("contrib", kernels=False),
        "torch": lambda: lambda: _first(module(**arguments)),
        "torch.compile": lambda: _compiled(module, arguments),
        "openvino": lambda: _in_openvino(exported, converted, arguments, setting),
    }


def _opened(
    program: OnnxProgram,
    target: Any,
    arguments: Inputs,
    setting: Setting,
    *,
    kernels: bool = True,
    deterministic: bool = False,
) -> Call:
    """Optimize a program for a target, and return a call of its session."""
    program.optimize(target=target, deterministic=deterministic)
    session = coreai_onnx.session(
        program, kernels=kernels, threads=setting.threads, deterministic=deterministic
    ).ort
    feeds = {one.name: ort_value(arguments[one.name]) for one in session.get_inputs()}
    return lambda: session.run_with_ort_values(None, feeds)[0]


def _compiled(module: torch.nn.Module, arguments: Inputs) -> Call:
    torch.compiler.reset()
    function = torch.compile(module)
    return lambda: _first(function(**arguments))


def _in_openvino(
    exported: torch.export.ExportedProgram,
    converted: Callable[[int], OnnxProgram],
    arguments: Inputs,
    setting: Setting,
) -> Call:
    """Return a call of what OpenVINO converts, or of our file if it cannot."""
    import onnx_ir as ir
    import openvino

    narrow = setting.dtype == "bfloat16"
    try:
        if setting.dtype == "int4":
            raise RuntimeError("torch has no weights of 4 bits")
        graph = openvino.convert_model(exported)
    except Exception as error:  # noqa: BLE001 - its front end raises many
        print(f"  OpenVINO does not convert it: {str(error).strip().splitlines()[-1]}", flush=True)
        program = converted(PORTABLE_OPSET)
        program.optimize()
        graph = openvino_graph(ir.to_proto(program.model))
    settings = {
        "INFERENCE_NUM_THREADS": setting.threads,
        "INFERENCE_PRECISION_HINT": "bf16" if narrow else "f32",
    }
    request = openvino.Core().compile_model(graph, "CPU", settings).create_infer_request()
    inputs = list(arguments.values())  # in the order of the module
    for index, one in enumerate(request.model_inputs):
        names = one.names & arguments.keys()
        tensor = arguments[names.pop()] if names else inputs[index]
        request.set_tensor(one, openvino_tensor(tensor.contiguous()))
    output = request.model_outputs[0]

    def call() -> Any:
        request.infer()
        return request.get_tensor(output)

    return call


def decoding(architecture: Architecture, setting: Setting) -> dict[str, Callable[[], Call]]:
    """Return what prepares each way of onnxruntime to run a token after those of the setting."""
    batch, past = setting.size
    module: Any = architecture.module(DTYPES[setting.dtype])

    def opened(target: Any, **settings: bool) -> Call:
        with tempfile.TemporaryDirectory() as folder:
            coreai_onnx.export_model(module, Path(folder, "model"), cache="growing", check=False)
            program = OnnxProgram.load(Path(folder, "model", "model.onnx"))
        if setting.dtype == "int4":
            program.quantize(4)
        arguments = {
            "input_ids": torch.full((batch, 1), 5),
            "attention_mask": torch.ones(batch, past + 1, dtype=torch.int64),
            "position_ids": torch.full((batch, 1), past),
        }
        torch.manual_seed(0)
        sizes = {"batch_size": batch, "past_sequence_length": past}
        for info in coreai_onnx.session(program).state_inputs:
            shape = [sizes[dim] if isinstance(dim, str) else dim for dim in info.dims]
            arguments[info.name] = torch.rand(shape).to(DTYPES[setting.dtype])
        return _opened(program, target, arguments, setting, **settings)

    return {
        "kernels": lambda: opened("kernels"),
        "deterministic": lambda: opened("kernels", deterministic=True),
        "stock": lambda: opened("onnxruntime", kernels=False),
        "contrib": lambda: opened("contrib", kernels=False),
    }


def _first(result: Any) -> torch.Tensor:
    leaves = torch.utils._pytree.tree_leaves(result)
    return next(leaf for leaf in leaves if isinstance(leaf, torch.Tensor))


def measured(
    makers: dict[str, Callable[[], Call]], setting: Setting
) -> dict[str, list[float] | str]:
    """Return the seconds of each run of each way, or why it does not run."""
    times: dict[str, list[float] | str] = {}
    calls: dict[str, Call] = {}
    expected: torch.Tensor | None = None
    for way, maker in makers.items():
        try:
            call = maker()
            result = _numbers(call())
        except Exception as error:  # noqa: BLE001 - that a way does not run is a result
            print(f"  {way}: {type(error).__name__}: {error}"[:300], file=sys.stderr, flush=True)
            times[way] = "–"
            continue
        expected = result if expected is None else expected
        worst = (result - expected).abs().max() / expected.abs().max()
        if worst > LIMITS[setting.dtype]:
            times[way] = f"differs by {worst:.0e}"
            continue
        calls[way], times[way] = call, []
    for index in range(setting.rounds // CALLS + 1):
        for way in list(calls)[:: 1 if index % 2 else -1]:
            for turn in range(CALLS + 2):
                begun = setting.clock()
                calls[way]()
                # The first round allocates and compiles; the first calls of a turn bring back the
                # code and data that the way before it displaced.
                if index and turn >= 2:
                    times[way].append(setting.clock() - begun)
    return times


def _numbers(result: Any) -> torch.Tensor:
    """Return a result of onnxruntime, torch or OpenVINO in double precision."""
    if isinstance(result, ort.OrtValue):
        return of_ort_value(result).double()
    return (result if isinstance(result, torch.Tensor) else of_openvino_tensor(result)).double()


def columns(times: dict[str, list[float] | str]) -> list[str]:
    """Return the time of the kernels, the ratios of the others, and which of them are faster."""
    ours, *others = times.values()
    if isinstance(ours, str):
        return [ours, *map(str, others), ""]
    best, middle = min(ours), statistics.median(ours)
    cells, faster = [f"{best * 1e6:.0f} / {middle * 1e6:.0f}"], []
    for way, took in list(times.items())[1:]:
        if isinstance(took, str):
            cells.append(took)
            continue
        ratios = (min(took) / best, statistics.median(took) / middle)
        cells.append(f"{ratios[0]:.2f} ({ratios[1]:.2f})")
        if max(ratios) < 1:
            faster.append(way)
    return [*cells, ", ".join(faster)]


if __name__ == "__main__":
    main()
