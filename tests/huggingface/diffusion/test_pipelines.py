"""Pipelines of diffusers as folders: their pictures in onnxruntime are those of torch."""

from __future__ import annotations

import copy
import json
import shutil
import sys
from pathlib import Path
from typing import Any

import diffusers
import numpy as np
import onnxruntime as ort
import pytest
import torch
import transformers
from diffusers.pipelines.stable_diffusion.safety_checker import StableDiffusionSafetyChecker

import coreai_onnx
from coreai_onnx.errors import ConversionError, ModelSourceError, SaveError
from coreai_onnx.huggingface.diffusion import loading, open_pipeline
from coreai_onnx.huggingface.diffusion.components import Component
from coreai_onnx.huggingface.diffusion.loading import PipelineModel
from coreai_onnx.huggingface.diffusion.recording import record
from tests.models.diffusion import flux, small_pipeline, wan
from tests.support.tolerances import assert_close

# Of diffusers and torch, about their own code.
pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")


@pytest.fixture(scope="module")
def stable_diffusion(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path]:
    """A pipeline and the folder that it is exported to."""
    place = tmp_path_factory.mktemp("diffusion")
    pipeline = small_pipeline("Stable Diffusion 1.5")
    pipeline.save_pretrained(place / "source")
    coreai_onnx.export_model(place / "source", place / "folder")
    return pipeline, place / "folder"


@pytest.fixture(scope="module")
def opened(stable_diffusion: tuple[Any, Path]) -> Any:
    return open_pipeline(stable_diffusion[1])


@pytest.fixture(scope="module")
def recorded(stable_diffusion: tuple[Any, Path]) -> dict[str, Any]:
    return record(stable_diffusion[0])


@pytest.fixture
def with_checker(stable_diffusion: tuple[Any, Path]) -> Any:
    """The pipeline with a safety checker that must not run."""
    vision = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1}
    vision |= {"num_attention_heads": 1, "image_size": 16, "patch_size": 16}
    text = {**vision, "vocab_size": 8, "max_position_embeddings": 4}
    config = transformers.CLIPConfig(text_config=text, vision_config=vision)
    checker = StableDiffusionSafetyChecker(config)
    checker.register_forward_pre_hook(lambda *_: pytest.fail("it ran"))
    added = {"safety_checker": checker, "feature_extractor": transformers.CLIPImageProcessor()}
    return diffusers.StableDiffusionPipeline(**{**stable_diffusion[0].components, **added})


def picture(pipeline: Any, height: int, width: int) -> np.ndarray:
    pipeline.set_progress_bar_config(disable=True)
    result = pipeline(
        ["a cat"], height=height, width=width, num_inference_steps=2, output_type="np",
        generator=torch.Generator().manual_seed(0),
    )  # fmt: skip
    return np.asarray(result.images)


def test_the_files_are_those_of_optimum(stable_diffusion: tuple[Any, Path]) -> None:
    folder = stable_diffusion[1]
    models = {file.parent.name for file in folder.rglob("*.onnx")}
    assert models == {"text_encoder", "unet", "vae_encoder", "vae_decoder"}
    assert all((folder / name / "config.json").is_file() for name in models)
    assert (folder / "scheduler" / "scheduler_config.json").is_file()
    assert (folder / "tokenizer" / "tokenizer.json").is_file()
    index = json.loads((folder / "model_index.json").read_text())
    assert index["_class_name"] == "StableDiffusionPipeline"


@pytest.mark.parametrize(
    ("name", "inputs", "outputs"),
    [
        (
            "unet",
            {
                "sample": ["batch_size", 4, "height", "width"],
                "timestep": [],
                "encoder_hidden_states": ["batch_size", "sequence_length", 32],
            },
            {"out_sample": ["batch_size", 4, "height", "width"]},
        ),
        (
            "vae_decoder",
            {"latent_sample": ["batch_size", 4, "latent_height", "latent_width"]},
            {"sample": ["batch_size", 3, "8*latent_height", "8*latent_width"]},
        ),
        (
            "text_encoder",
            {"input_ids": ["batch_size", "sequence_length"]},
            {
                "last_hidden_state": ["batch_size", "sequence_length", 32],
                "pooler_output": ["batch_size", 32],
            },
        ),
    ],
)
def test_interfaces(stable_diffusion: tuple[Any, Path], name: str, inputs, outputs) -> None:
    plain = ort.InferenceSession(stable_diffusion[1] / name / "model.onnx")
    assert {node.name: node.shape for node in plain.get_inputs()} == inputs
    assert {node.name: node.shape for node in plain.get_outputs()} == outputs


@pytest.mark.parametrize("kernels", [False, True])
@pytest.mark.parametrize("size", [(64, 48), (40, 72)], ids=["even", "odd"])
def test_the_picture_is_that_of_torch(
    stable_diffusion: tuple[Any, Path], opened: Any, *, kernels: bool, size: tuple[int, int]
) -> None:
    """Guidance makes batches of two; odd latents need an upsampling to a given size."""
    pipeline, folder = stable_diffusion
    expected = picture(pipeline, *size)
    assert expected.std() > 0.05
    exported = open_pipeline(folder, kernels=True) if kernels else opened
    assert_close(picture(exported, *size), expected)


def test_composites_are_found(stable_diffusion: tuple[Any, Path]) -> None:
    unet = coreai_onnx.OnnxProgram.load(stable_diffusion[1] / "unet" / "model.onnx")
    counts = {name.rpartition(":")[2]: count for name, count in unet.composites().items()}
    # A transformer block in the U-Net's way down, one between: self and cross attention.
    assert counts["scaled_dot_product_attention"] == 2 * counts["geglu"] == 4
    assert counts["group_norm"] == 19
    assert counts["silu"] == 19


def test_the_encoder_returns_the_distribution(
    stable_diffusion: tuple[Any, Path], opened: Any
) -> None:
    image = torch.randn(1, 3, 24, 40)
    with torch.no_grad():
        expected = stable_diffusion[0].vae.encode(image).latent_dist
        actual = opened.vae.encode(image).latent_dist
    assert_close(actual.mean, expected.mean)
    assert_close(actual.std, expected.std)


def test_arguments_have_the_dtype_of_the_file(opened: Any) -> None:
    """In a folder in float16, the autoencoder of Stable Diffusion XL is in float32."""
    latent = torch.randn(1, 4, 3, 5).half()
    assert_close(opened.vae.decode(latent).sample, opened.vae.decode(latent.float()).sample)


def test_an_autoencoder_has_the_dtype_of_its_call(stable_diffusion: tuple[Any, Path]) -> None:
    vae = copy.deepcopy(stable_diffusion[0].vae).half()
    latent = torch.randn(1, 4, 3, 5)
    assert Component("vae_decoder", vae, {"": {"z": latent}}).module.dtype == torch.float32
    assert Component("vae_decoder", vae, {"": {"z": latent.half()}}).module is vae
    assert vae.dtype == torch.float16


def test_the_safety_checker_is_left_out(
    with_checker: Any, tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.setattr(PipelineModel, "components", lambda _self: iter(()))
    coreai_onnx.export_model(with_checker, tmp_path / "folder")
    assert not (tmp_path / "folder" / "safety_checker").exists()
    index = json.loads((tmp_path / "folder" / "model_index.json").read_text())
    assert index["safety_checker"] == [None, None]


def test_a_size_that_is_no_multiple(opened: Any) -> None:
    with pytest.raises(ValueError, match="have to be divisible by 8 but are 60 and 64"):
        picture(opened, 60, 64)


def test_flux_packs_latents() -> None:
    """Its transformer reads a sequence of patches, whose length follows height and width."""
    torch.manual_seed(0)
    pipeline = flux()
    parts = {part.name: part for part in PipelineModel(pipeline).components()}
    assert list(parts) == [
        "vae_encoder", "vae_decoder", "text_encoder", "text_encoder_2", "transformer",
    ]  # fmt: skip
    transformer = parts["transformer"]
    dims = dict(zip(transformer.input_names, transformer.dynamic_shapes()[0], strict=True))
    assert dims["hidden_states"] == {0: "batch_size", 1: "packed_height_width"}
    assert dims["img_ids"] == {0: "packed_height_width"}
    assert dims["txt_ids"] == {0: "sequence_length"}
    assert dims["guidance"] == dims["timestep"] == {0: "batch_size"}
    assert transformer.output_names == ["out_hidden_states"]


def test_optional_modules(stable_diffusion: tuple[Any, Path], tmp_path: Path) -> None:
    """Wan's transformer is one: either of two suffices."""
    PipelineModel(wan()).save_companions(tmp_path, None)
    for name in ("transformer", "text_encoder", "vae_decoder"):  # they are opened, not run
        shutil.copy(stable_diffusion[1] / "text_encoder" / "model.onnx", tmp_path / name)
    assert isinstance(open_pipeline(tmp_path), diffusers.WanPipeline)


def test_a_run_leaves_the_pipeline_as_it_was(with_checker: Any) -> None:
    state, length = torch.get_rng_state(), with_checker.tokenizer.model_max_length
    steps, checker = with_checker.scheduler.num_inference_steps, with_checker.safety_checker
    assert "safety_checker" not in record(with_checker)
    assert torch.equal(torch.get_rng_state(), state)
    assert with_checker.tokenizer.model_max_length == length
    assert with_checker.scheduler.num_inference_steps == steps
    assert with_checker.safety_checker is checker
    assert "decode" not in vars(with_checker.vae)
    assert not with_checker.unet._forward_pre_hooks


def test_a_difference_is_an_error(
    stable_diffusion: tuple[Any, Path], recorded: dict[str, Any]
) -> None:
    pipeline, folder = stable_diffusion
    encoder = Component("text_encoder", pipeline.text_encoder, recorded["text_encoder"])
    program = coreai_onnx.OnnxProgram.load(folder / "text_encoder" / "model.onnx")
    encoder.check(program)
    weight = pipeline.text_encoder.get_input_embeddings().weight.data
    try:
        weight.mul_(1.1)
        with pytest.raises(ConversionError, match="exported text_encoder differs from torch"):
            encoder.check(program)
    finally:
        weight.div_(1.1)


# ---------------------------------------------------------------------- bad input
@pytest.fixture
def source(stable_diffusion: tuple[Any, Path], tmp_path: Path) -> Path:
    return shutil.copytree(stable_diffusion[1].parent / "source", tmp_path / "source")


def refused(source: Any, folder: Path, message: str, **options: Any) -> None:
    with pytest.raises(ModelSourceError, match=message):
        coreai_onnx.export_model(source, folder, **options)
    assert not folder.exists()


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        (["my_package", "MyUNet"], "unet is a MyUNet of my_package, which is not a class of"),
        (["diffusers", "NoSuchModel"], "unet is a NoSuchModel of diffusers"),
    ],
)
def test_an_unknown_component(source: Path, tmp_path: Path, entry: list[str], message: str) -> None:
    file = source / "model_index.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "unet": entry}))
    refused(source, tmp_path / "folder", message)


@pytest.mark.parametrize("text", ["{", "[]", "3"])
def test_a_broken_index(source: Path, tmp_path: Path, text: str) -> None:
    (source / "model_index.json").write_text(text)
    refused(source, tmp_path / "folder", "model_index.json: is not JSON, or incomplete")


def test_a_missing_part(source: Path, tmp_path: Path) -> None:
    shutil.rmtree(source / "vae")
    refused(source, tmp_path / "folder", "cannot load")


def test_a_module_that_is_not_called(
    stable_diffusion: tuple[Any, Path],
    recorded: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = PipelineModel(stable_diffusion[0])
    model.parts["controlnet"] = torch.nn.Linear(2, 2)
    monkeypatch.setattr(loading, "record", lambda _: recorded)
    with pytest.raises(ModelSourceError, match=r"does not call its controlnet \(Linear\)"):
        list(model.components())


def test_another_task(stable_diffusion: tuple[Any, Path], tmp_path: Path) -> None:
    message = "StableDiffusionPipeline is for text-to-image; it has no task 'fill-mask'"
    refused(stable_diffusion[0], tmp_path / "folder", message, task="fill-mask")
    refused(stable_diffusion[0], tmp_path / "folder", "no static cache", cache="static")


def test_without_diffusers(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "diffusers", None)
    refused(source, tmp_path / "folder", "is a pipeline of diffusers, .*: pip install diffusers")


def test_a_folder_without_an_export(source: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelSourceError, match="there is no exported module"):
        open_pipeline(source)
    with pytest.raises(ModelSourceError, match=r"there is no model_index.json"):
        open_pipeline(tmp_path)


def test_an_earlier_export_is_replaced(source: Path, tmp_path: Path, monkeypatch: Any) -> None:
    """Its subfolders too; not one with a file that an export does not write."""
    folder = tmp_path / "folder"
    monkeypatch.setattr(PipelineModel, "components", lambda _self: iter(()))
    coreai_onnx.export_model(source, folder)
    (folder / "unet" / "model.onnx").write_bytes(b"")
    with pytest.raises(SaveError, match="exists and is not empty"):
        coreai_onnx.export_model(source, folder)
    coreai_onnx.export_model(source, folder, overwrite=True)
    assert not (folder / "unet" / "model.onnx").exists()
    (folder / "unet" / "model.onnx").write_bytes(b"")
    (folder / "unet" / "notes.txt").write_text("mine")
    with pytest.raises(SaveError, match="does not write unet"):
        coreai_onnx.export_model(source, folder, overwrite=True)
    assert (folder / "unet" / "notes.txt").read_text() == "mine"
