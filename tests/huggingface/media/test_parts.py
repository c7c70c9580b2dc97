"""Models of pictures and sound as folders: greedy tokens equal to those of transformers."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

import coreai_onnx
from coreai_onnx.errors import (
    GenerationError,
    InputError,
    ModelSourceError,
    QuantizationError,
)
from coreai_onnx.huggingface import ExportedFolder, export_model, open_folder
from coreai_onnx.huggingface.generation import LanguageModel
from coreai_onnx.huggingface.quantizing import quantize_programs
from tests.models.media import MEDIA_MODELS, PICTURE_READERS, TEXT
from tests.support.huggingface_folders import tokenizer

LENGTH = 32
# A penalty keeps random models from repeating one token.
OPTIONS: dict[str, Any] = {"max_new_tokens": LENGTH, "repetition_penalty": 1.3}
MODELS = {one.name: one for one in (*MEDIA_MODELS, *PICTURE_READERS)}


def tokens_of_transformers(model: Any, inputs: dict[str, torch.Tensor]) -> list[int]:
    if "input_ids" in inputs:
        inputs = {**inputs, "attention_mask": torch.ones_like(inputs["input_ids"])}
    # No token ends a text: all of them are compared.
    settings = {"do_sample": False, "pad_token_id": 0, "eos_token_id": None}
    return model.generate(**inputs, **OPTIONS, **settings)[0].tolist()


@pytest.mark.parametrize("name", ["GIT", "Qwen3-VL"])
def test_pictures_give_the_tokens_of_transformers(name: str, tmp_path: Path) -> None:
    model = MODELS[name].make()
    inputs = MODELS[name].inputs(model)
    exported = export_model(model, tmp_path / "folder", task=MODELS[name].task)
    assert list(exported.programs) == [
        "vision_encoder.onnx", "embed_tokens.onnx", "decoder_model_merged.onnx"
    ]  # fmt: skip
    for kernels in (False, True):
        opened = LanguageModel.open(exported.path, kernels=kernels)
        ready = {key: x for key, x in inputs.items() if key != "input_ids"}
        tokens = opened.generate(
            inputs["input_ids"][0].tolist(), images=ready, stop_ids=[], **OPTIONS
        )
        assert tokens.tolist() == tokens_of_transformers(model, inputs)
        if name == "GIT":  # its mask covers a picture in every call after the first
            continue
        text = opened.generate([1, 5, 9], stop_ids=[], **OPTIONS)
        assert text.tolist() == tokens_of_transformers(
            model, {"input_ids": torch.tensor([[1, 5, 9]])}
        )


def test_a_reader_of_pictures_gives_the_tokens_of_transformers(tmp_path: Path) -> None:
    model = MODELS["TrOCR"].make()
    inputs = MODELS["TrOCR"].inputs(model)
    folder = export_model(model, tmp_path / "folder").path
    tokens = coreai_onnx.generate(folder, [2], images=inputs, stop_ids=[], **OPTIONS)
    assert np.asarray(tokens)[0].tolist() == tokens_of_transformers(model, inputs)


@pytest.fixture(scope="module")
def llava(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, ExportedFolder]:
    """A LLaVA, and its folder with a processor."""
    config = transformers.LlavaConfig(
        text_config=transformers.LlamaConfig(**{**TEXT, "vocab_size": 300}),
        vision_config=MODELS["LLaVA"].make().config.vision_config,
        image_token_id=260,
    )
    torch.manual_seed(0)
    model = transformers.LlavaForConditionalGeneration(config).eval()
    exported = export_model(model, tmp_path_factory.mktemp("llava") / "folder")
    words = tokenizer()
    words.add_special_tokens({"additional_special_tokens": ["<filler>", "<image>"]})
    size = {"height": 16, "width": 16}
    transformers.LlavaProcessor(
        transformers.models.clip.CLIPImageProcessorPil(size={"shortest_edge": 16}, crop_size=size),
        words, patch_size=4, vision_feature_select_strategy="default",
        image_token="<image>", num_additional_image_tokens=1,
    ).save_pretrained(exported.path)  # fmt: skip
    return model, exported


def test_the_processor_reads_pictures_of_several_sizes(llava: tuple[Any, ExportedFolder]) -> None:
    model, folder = llava[0], llava[1].path
    random = np.random.default_rng(0)
    images = [random.integers(0, 255, size, np.uint8) for size in ((20, 30, 3), (16, 17, 3))]
    text = "a <image> and <image>:"
    processor = transformers.AutoProcessor.from_pretrained(folder)
    inputs = processor(text=text, images=images, return_tensors="pt")
    tokens = tokens_of_transformers(model, dict(inputs))[inputs["input_ids"].shape[1] :]
    expected = processor.tokenizer.decode(tokens, skip_special_tokens=True)
    assert coreai_onnx.generate(folder, text, images=images, stop_ids=[], **OPTIONS) == expected


def test_a_folder_as_a_model_of_transformers(llava: tuple[Any, ExportedFolder]) -> None:
    inputs = {
        "input_ids": torch.tensor([[1, *[260] * 16, 5]]),
        "pixel_values": torch.randn(1, 3, 16, 16, generator=torch.Generator().manual_seed(0)),
    }
    opened = open_folder(llava[1].path)
    assert tokens_of_transformers(opened, inputs) == tokens_of_transformers(llava[0], inputs)


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        ("a <image>", {"images": 2}, "has 1 placeholders <image>, and images has 2"),
        ("nothing", {"images": 1}, "the processor refuses the prompt"),
        ("a <image>", {"audio": 1}, "takes no audio: it has an encoder of image only"),
    ],
)
def test_pictures_that_do_not_fit_the_prompt(
    text: str, options: dict[str, int], message: str, llava: tuple[Any, ExportedFolder]
) -> None:
    media: Any = {name: [np.zeros((16, 16, 3), np.uint8)] * n for name, n in options.items()}
    with pytest.raises(GenerationError, match=message):
        coreai_onnx.generate(llava[1].path, text, **media)


@pytest.mark.parametrize(
    ("pixels", "error", "message"),
    [
        (torch.zeros(1, 3, 24, 24), InputError, "dimension 2 is 24, expected 16"),
        (torch.zeros(2, 3, 16, 16), GenerationError, "features and image tokens do not match"),
        ("a picture", GenerationError, "images and audio must be tensors by name"),
    ],
)
def test_inputs_that_do_not_fit(
    pixels: Any, error: type[Exception], message: str, llava: tuple[Any, ExportedFolder]
) -> None:
    tokens = [1, *[260] * 16, 5]
    with pytest.raises(error, match=message):
        coreai_onnx.generate(llava[1].path, tokens, images={"pixel_values": pixels})


def test_quantized_files(llava: tuple[Any, ExportedFolder], tmp_path: Path) -> None:
    programs = copy.deepcopy(dict(llava[1].programs))
    with pytest.raises(QuantizationError, match="names the inputs of each file"):
        quantize_programs(programs, {"bits": 4, "calibration": "a text"}, "onnxruntime")
    quantize_programs(programs, {"bits": 4}, "onnxruntime")
    tokens = []
    for name, program in programs.items():
        program.save(tmp_path / name)
        quantized = (tmp_path / name).stat().st_size
        assert (quantized < (llava[1].path / name).stat().st_size) == (
            name != "vision_encoder.onnx"
        )
    (tmp_path / "config.json").symlink_to(llava[1].path / "config.json")
    picture = {"pixel_values": torch.randn(1, 3, 16, 16, generator=torch.Generator())}
    for kernels in (False, True):
        opened = LanguageModel.open(tmp_path, kernels=kernels)
        prompt = [1, *[260] * 16, 5]
        tokens.append(opened.generate(prompt, images=picture, stop_ids=[], **OPTIONS).tolist())
    assert tokens[0] == tokens[1]


def test_a_folder_without_a_processor(llava: tuple[Any, ExportedFolder], tmp_path: Path) -> None:
    for file in llava[1].path.iterdir():
        if "processor" not in file.name:
            (tmp_path / file.name).symlink_to(file)
    with pytest.raises(GenerationError, match=r"there is no processor_config.json"):
        coreai_onnx.generate(tmp_path, "a <image>", images=[np.zeros((16, 16, 3), np.uint8)])


def test_a_model_whose_encoder_is_not_told_from_its_decoder(tmp_path: Path) -> None:
    config = transformers.FuyuConfig(hidden_size=32, num_hidden_layers=1, num_attention_heads=4)
    model = transformers.FuyuForCausalLM(config)
    with pytest.raises(ModelSourceError, match="does not tell its encoder from its decoder"):
        export_model(model, tmp_path / "folder", task="image-text-to-text")
    assert not (tmp_path / "folder").exists()
