"""Exports small pipelines of diffusers and compares their pictures, by runner: docs/diffusion.md.

    make test-diffusers

prints the tables, and writes the pictures to build/pipelines: rows by torch, on bodies, and with
kernels. diffusers' pipeline computes the reference. The runners are the same pipeline with sessions
in place of its modules, on bodies and on kernels, and optimum's, which needs releases of its own
and runs in build/optimum-env (tools/make_optimum_environment).
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch

PLACE = Path("build/pipelines")
ENVIRONMENT = Path("build/optimum-env/bin/python")
STEPS = 3
OPTIMUM = ("Stable Diffusion 1.5", "Stable Diffusion XL", "Stable Diffusion 3", "Flux")
"""The pipelines that optimum has classes for."""
COMPOSITES = (
    "scaled_dot_product_attention",
    "group_norm",
    "layer_norm",
    "rms_norm",
    "silu",
    "gelu",
    "geglu",
    "rope",
)


def picture_of(pipeline: Any, *, frames: bool = False) -> np.ndarray:
    """Return two pictures, or videos, of guidance batches."""
    pipeline.set_progress_bar_config(disable=True)
    result = pipeline(
        prompt=["a cat", "a dog on a hill"],
        height=64,
        width=48,
        num_inference_steps=STEPS,
        generator=torch.Generator().manual_seed(0),
        output_type="np",
        **({"num_frames": 5} if frames else {}),
    )
    return np.asarray(result[0])


def run_in_optimum(folder: Path) -> None:
    """Print the largest difference of optimum's pipeline; runs in the environment with optimum."""
    from optimum.onnxruntime import ORTDiffusionPipeline
    from transformers import PreTrainedTokenizerFast

    # The folder names the class of a newer transformers.
    tokenizers = {
        x.name: PreTrainedTokenizerFast.from_pretrained(x) for x in folder.glob("tokenizer*")
    }
    pipeline = ORTDiffusionPipeline.from_pretrained(folder, **tokenizers)
    print(np.abs(picture_of(pipeline) - np.load(folder.with_suffix(".npy"))).max())


def in_optimum(folder: Path) -> str:
    """Return the largest difference of optimum's pipeline, or the last line of its error."""
    command = [str(ENVIRONMENT), "-W", "ignore", __file__, "--in-optimum", str(folder)]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    text = run.stdout if run.returncode == 0 else run.stderr
    last = text.strip().splitlines()[-1]
    return f"{float(last):.1e}" if run.returncode == 0 else last


def difference_of(part: Any, file: Path) -> float:
    """Return the largest difference of a file's outputs from torch, relative to their values."""
    import coreai_onnx

    pairs = [(x, y.numpy()) for *_, x, y in part.results(coreai_onnx.session(file))]
    return max(float(np.abs(x - y).max() / np.abs(y).max()) for x, y in pairs)


def counts_of(program: Any) -> list[str]:
    """Return the number of nodes, and those of the composites."""
    # "ai.coreai::rope.interleaved" is a rope.
    counts = [(x.rpartition(":")[2].partition(".")[0], n) for x, n in program.composites().items()]
    found = (sum(n for key, n in counts if key.endswith(x)) for x in COMPOSITES)
    return [str(len(program.model.graph)), *(str(x or "") for x in found)]


def write_pictures(file: Path, rows: list[np.ndarray]) -> None:
    """Write pictures, or the first frames of videos, side by side: a row for each runner."""
    from PIL import Image

    firsts = [row[:, 0] if row.ndim == 5 else row for row in rows]
    grid = np.concatenate([np.concatenate(list(row), axis=1) for row in firsts])
    Image.fromarray((grid * 255).round().astype(np.uint8)).save(file)


def sweep(names: list[str]) -> None:
    """Print the rows of both tables."""
    import coreai_onnx
    from coreai_onnx.huggingface.diffusion import open_pipeline
    from coreai_onnx.huggingface.diffusion.loading import PipelineModel
    from tests.models.diffusion import small_pipeline

    pictures = []
    PLACE.mkdir(parents=True, exist_ok=True)
    for name in names:
        pipeline = small_pipeline(name)
        folder = PLACE / name.replace(" ", "_").replace(".", "")
        exported = coreai_onnx.export_model(pipeline, folder, overwrite=folder.is_dir())
        is_video = hasattr(pipeline, "video_processor")
        reference = picture_of(pipeline, frames=is_video)
        np.save(folder.with_suffix(".npy"), reference)
        for part in PipelineModel(pipeline).components():
            file = f"{part.name}/model.onnx"
            difference = f"{difference_of(part, folder / file):.1e}"
            row = [name, part.name, *counts_of(exported.programs[file]), difference]
            print(f"| {' | '.join(row)} |", flush=True)
        results = [
            picture_of(open_pipeline(folder, kernels=kernels), frames=is_video)
            for kernels in (False, True)
        ]
        write_pictures(folder.with_suffix(".png"), [reference, *results])
        differences = [f"{np.abs(x - reference).max():.1e}" for x in results]
        optimum = in_optimum(folder) if name in OPTIMUM and ENVIRONMENT.exists() else "–"
        pictures.append(
            f"| {' | '.join([name, f'{reference.std():.2f}', *differences, optimum])} |"
        )
        print(pictures[-1], flush=True)
    print("\n".join(pictures))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--in-optimum", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("names", nargs="*", help="pipelines (default: all)")
    options = parser.parse_args()
    if options.in_optimum:
        run_in_optimum(options.in_optimum)
    else:
        sys.path.insert(0, str(Path.cwd()))
        from tests.models.diffusion import PIPELINES

        sweep(options.names or list(PIPELINES))
