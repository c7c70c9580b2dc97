"""``coreai-onnx export``."""

from __future__ import annotations

import argparse
from pathlib import Path

from coreai_onnx.cli.options import output, quantization
from coreai_onnx.cli.options.numbers import SEED, stages_shown
from coreai_onnx.model.contract import PADDINGS
from coreai_onnx.targets.opsets import DEFAULT_TARGET, TARGETS

NAME = "export"
DESCRIPTION = """\
export a model of transformers to a folder with its tokenizer

SOURCE is a local folder of transformers (config.json, weights, tokenizer), a GGUF file
(docs/gguf.md), or a config.json alone, whose model gets random weights. The folder is run by
coreai_onnx.generate, onnxruntime, onnxruntime-genai, optimum and transformers.js
(docs/language_models.md). A folder of diffusers (model_index.json) becomes one that diffusers and
optimum run (docs/diffusion.md).

  coreai-onnx export my_llama -o my_llama_onnx
  coreai-onnx export my_bert/config.json -o bert_onnx --task feature-extraction --seed 1
  coreai-onnx export my_llama -o my_llama_onnx --dtype float16 --target contrib
  coreai-onnx export my_llama-q4_k_m.gguf -o my_llama_onnx --target kernels
  coreai-onnx export my_llama -o my_llama_int4 --bits 4 --rule "*lm_head=8" --target kernels
  coreai-onnx export my_minilm -o my_minilm_onnx --include tokenizer pooling
"""


def declare(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("source", metavar="SOURCE", type=Path)
    parser.add_argument("-o", "--output", required=True, type=Path, metavar="FOLDER")
    parser.add_argument("--task", help="the task (default: that of the configuration)")
    parser.add_argument(
        "--cache",
        help="the cache of a decoder: growing (default), static, which is updated in place, or "
        "paged, for an engine that serves many requests (docs/serving.md)",
    )
    parser.add_argument(
        "--cache-bits",
        type=int,
        metavar="BITS",
        help="of keys and values in the cache of a decoder: 8 or 4, with a scale for each token "
        "and head (default: as computed)",
    )
    parser.add_argument(
        "--padding",
        choices=PADDINGS,
        help="of the prompts of a batch: left, or none, with which the targets contrib, webgpu and "
        "cuda make GroupQueryAttention (default: none for them, for cuda if in float16; else left)",
    )
    parser.add_argument(
        "--dtype",
        default="float32",
        help="of the computation: float32 (default), float16, bfloat16",
    )
    parser.add_argument(
        "--weights-dtype",
        help="of the weights in the file: float32, float16, bfloat16 (default: as in the source)",
    )
    parser.add_argument(
        "--target", choices=TARGETS, default=DEFAULT_TARGET, help="what will run the file"
    )
    parser.add_argument("--opset", type=int, help="ONNX opset, 18 to 26 (default: 23)")
    output.declare_minimum(parser)
    output.declare_external_data(parser)
    parser.add_argument(
        "--include-kernels",
        action="store_true",
        help="add the kernel library, for onnxruntime-genai",
    )
    parser.add_argument(
        "--overwrite",
        action="store_true",
        help="replace an earlier export in FOLDER, when the new one is complete",
    )
    parser.add_argument(
        "--include",
        nargs="+",
        default=[],
        metavar="PART",
        help="what else the file computes: tokenizer, image_processor, image_decoder, nms, "
        "pooling, cross_attentions",
    )
    parser.add_argument(
        "--lora",
        nargs="*",
        metavar="LAYER",
        help="inputs for adapters of peft, of these linear layers (default: all but the head)",
    )
    parser.add_argument(
        "--no-check", action="store_true", help="do not compare a decoder with torch"
    )
    parser.add_argument("--seed", type=SEED, default=0, help="seed of random weights (default: 0)")
    quantization.declare(parser)


def execute(options: argparse.Namespace) -> int:
    """Export the model and print what was written."""
    bits = quantization.chosen(options, packed=Path(options.source).suffix == ".gguf")
    with stages_shown():
        from coreai_onnx.huggingface.exporting import export_model

        exported = export_model(
            options.source,
            options.output,
            task=options.task,
            cache=options.cache,
            cache_bits=options.cache_bits,
            padding=options.padding,
            dtype=options.dtype,
            weights_dtype=options.weights_dtype,
            target=options.target,
            opset_version=options.opset,
            minimum_onnxruntime=options.minimum_onnxruntime,
            external_data=options.external_data,
            include_kernels=options.include_kernels,
            overwrite=options.overwrite,
            check=not options.no_check,
            seed=options.seed,
            quantization=bits,
            include=options.include,
            # Without names of layers the option is an empty list: True selects the default ones.
            lora=options.lora is not None and (options.lora or True),
        )
    for program in exported.programs.values():
        quantization.print_reports(program, layers=options.layers)
    print(exported)
    return 0
