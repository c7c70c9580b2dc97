"""Encoders and classifiers: their inputs and outputs."""

from __future__ import annotations

from typing import Any

import onnx_ir as ir
import pytest
import torch
import transformers

from coreai_onnx import OnnxProgram, TorchConverter
from coreai_onnx.errors import ConversionError, ModelSourceError, SpecializationWarning
from coreai_onnx.export.torch_export import TorchExport, with_named_dims
from coreai_onnx.huggingface.heads.head import Head
from coreai_onnx.huggingface.heads.inputs import IMAGE_DIMS
from coreai_onnx.huggingface.heads.tasks import TASKS
from tests.support.huggingface_folders import BERT
from tests.support.tolerances import assert_close

VIT: dict[str, Any] = {
    **{name: size for name, size in BERT.items() if name != "vocab_size"},
    "image_size": 16,
    "patch_size": 8,
}


def model(name: str, **settings: Any) -> Any:
    torch.manual_seed(0)
    cls = getattr(transformers, name)
    return cls(cls.config_class(**settings)).eval()


@pytest.mark.parametrize(
    ("name", "task", "outputs"),
    [
        ("BertModel", "feature-extraction", ["last_hidden_state"]),
        ("BertForMaskedLM", "fill-mask", ["logits"]),
        ("BertForQuestionAnswering", "question-answering", ["start_logits", "end_logits"]),
    ],
)
def test_names_of_a_text_model(name: str, task: str, outputs: list[str]) -> None:
    head = Head(model(name, **BERT), TASKS[task])
    assert head.input_names == ["input_ids", "attention_mask", "token_type_ids"]
    assert head.output_names == outputs


def test_a_text_model_without_segments() -> None:
    head = Head(model("BertModel", **BERT, type_vocab_size=1), TASKS["feature-extraction"])
    assert head.input_names == ["input_ids", "attention_mask"]


def test_names_of_an_image_model() -> None:
    head = Head(model("ViTForImageClassification", **VIT), TASKS["image-classification"])
    assert (head.input_names, head.output_names) == (["pixel_values"], ["logits"])
    assert head.example(torch.float32)[0][0].shape == (2, 3, 16, 16)


CLIP: dict[str, Any] = {
    "projection_dim": 16,
    "text_config": {**BERT, "hidden_size": 32, "eos_token_id": 2},
    "vision_config": {**{n: x for n, x in VIT.items() if n != "max_position_embeddings"}},
}


@pytest.mark.parametrize(("name", "mask"), [("CLIPModel", True), ("SiglipModel", False)])
def test_a_model_of_texts_and_images(name: str, mask: bool) -> None:
    settings = {key: x for key, x in CLIP.items() if mask or key != "projection_dim"}
    head = Head(model(name, **settings), TASKS["zero-shot-image-classification"])
    assert head.input_names[:2] == ["input_ids", "pixel_values"]
    similarities = ["logits_per_image", "logits_per_text"]
    assert head.output_names == [*similarities, "text_embeds", "image_embeds"]
    dims = dict(zip(head.input_names, head.dynamic_shapes()[0], strict=True))
    batch, length = dims["input_ids"].values()
    assert (batch, length.__name__) == ("text_batch_size", "sequence_length")
    assert length.max == head.model.config.text_config.max_position_embeddings
    assert dims["pixel_values"] == {0: "image_batch_size"}


def test_features_of_images() -> None:
    head = Head(model("ViTModel", **VIT), TASKS["feature-extraction"])
    assert (head.input_names, head.output_names) == (["pixel_values"], ["last_hidden_state"])


def test_a_model_that_needs_other_inputs() -> None:
    """SigLIP 2 takes patches and the shapes of the images."""
    vision = {name: size for name, size in CLIP["vision_config"].items() if name != "image_size"}
    siglip = model("Siglip2Model", text_config=CLIP["text_config"], vision_config=vision)
    with pytest.raises(ModelSourceError, match="Siglip2Model does not run with input_ids, pixel_v"):
        Head(siglip, TASKS["zero-shot-image-classification"])


def test_a_model_without_the_head() -> None:
    with pytest.raises(ModelSourceError, match="BertModel has no start_logits and no end_logits"):
        Head(model("BertModel", **BERT), TASKS["question-answering"])


RESNET: dict[str, Any] = {
    "embedding_size": 8,
    "hidden_sizes": [8, 16],
    "depths": [1, 1],
    "layer_type": "basic",
}


@pytest.mark.parametrize(("name", "size"), [("ResNet", True), ("ViT", False)])
def test_images_of_any_size(name: str, size: bool) -> None:
    settings = RESNET if size else VIT
    task = TASKS["image-classification"]
    head = Head(model(f"{name}ForImageClassification", **settings), task)
    (dims,) = head.dynamic_shapes()[0]
    assert dims == {0: "batch_size", **(IMAGE_DIMS if size else {})}


def test_images_of_the_size_that_the_processor_makes() -> None:
    network, task = model("ResNetForImageClassification", **RESNET), TASKS["image-classification"]
    head = Head(network, task, image_size=(40, 48))
    head.any_size = False
    assert head.example(torch.float32)[0][0].shape == (2, 3, 40, 48)
    # The configuration comes first: positions are learned for its size.
    head = Head(model("ViTForImageClassification", **VIT), task, image_size=(40, 48))
    assert head.example(torch.float32)[0][0].shape == (2, 3, 16, 16)


def test_a_program_that_is_wrong_for_another_size() -> None:
    """It is exported again, for images of one size."""
    network = model("ResNetForImageClassification", **RESNET)
    head = Head(network, TASKS["image-classification"])
    shapes = []

    def convert(part: Head) -> OnnxProgram:
        shapes.append(part.dynamic_shapes())
        program = converted(part)
        if part.any_size:
            weights = program.model.graph.initializers
            bias = next(x for name, x in weights.items() if name.endswith("classifier.1.bias"))
            assert bias.const_value is not None
            bias.const_value = ir.tensor(bias.const_value.numpy() + 1, name=bias.name)
        part.check(program)
        return program

    reason = "224 x 224 pixels only; with dynamic sizes: logits differs from torch by 1 for images"
    with pytest.warns(SpecializationWarning, match=reason):
        program = head.convert_by(convert)
    assert shapes == [([{0: "batch_size", **IMAGE_DIMS}],), ([{0: "batch_size"}],)]
    image = torch.rand(3, 3, 224, 224)
    with torch.no_grad():
        assert_close(program.run(image)[0], network(image).logits)


def test_a_program_with_another_shape_of_its_result() -> None:
    task = TASKS["image-classification"]
    head, other = (
        Head(model("ResNetForImageClassification", **RESNET, num_labels=n), task) for n in (2, 3)
    )
    with pytest.raises(ConversionError, match="logits differs from torch by inf"):
        head.check(converted(other))


def converted(part: Head) -> OnnxProgram:
    dims = with_named_dims(part.dynamic_shapes())
    export = TorchExport(part.example(torch.float32), None, dims, deferred=True, oblivious=True)
    names = {"input_names": part.input_names, "output_names": part.output_names}
    return TorchConverter().add_pytorch_module(part, export_fn=export, **names).to_onnx()
