"""Tasks of transformers' ``pipeline``, each with a small model, its processor and an input."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

from tests.huggingface.heads.test_head import VIT
from tests.models.test_heads import CASES as HEADS
from tests.models.test_heads import config_file
from tests.support.huggingface_folders import BERT, LLAMA, tokenizer

ALL_PIPELINES = "COREAI_PIPELINES"
"""Set by ``make test-pipelines``, which runs all tasks instead of a few."""
RATE = 16_000


def picture() -> Any:
    """Return a picture of colored squares, 40 × 32."""
    from PIL import Image  # only pipelines of pictures need it

    pixels = np.random.default_rng(0).integers(0, 255, (4, 5, 3), dtype=np.uint8)
    return Image.fromarray(pixels.repeat(8, axis=0).repeat(8, axis=1))


def sound(seconds: float = 0.5) -> np.ndarray:
    """Return a tone in noise, float32 in -1…1."""
    times = np.arange(int(seconds * RATE)) / RATE
    noise = np.random.default_rng(0).standard_normal(len(times))
    return (0.5 * np.sin(2 * np.pi * 440 * times) + 0.1 * noise).astype(np.float32)


def texts() -> Any:
    """Return a tokenizer of bytes with the special tokens of BERT."""
    made = tokenizer()
    made.add_special_tokens({"mask_token": "<mask>", "sep_token": "</s>", "cls_token": "<s>"})
    return made


@dataclass(frozen=True)
class Pipeline:
    """A pipeline to compare with transformers'.

    Attributes:
        task: Its name.
        architecture: The class of the model.
        settings: The settings of its configuration.
        given: The input of the pipeline.
        processors: What makes tensors of it, saved beside the model.
        options: Options of the call.
    """

    task: str
    architecture: str
    settings: Mapping[str, Any]
    given: Callable[[], Any]
    processors: tuple[Callable[[], Any], ...]
    options: Mapping[str, Any] = field(default_factory=dict)

    def write(self, folder: Path) -> Any:
        """Write model and processors to a folder, and return the model."""
        cls = getattr(transformers, self.architecture)
        torch.manual_seed(0)
        if self.architecture in HEADS and not self.settings:
            config_file(self.architecture, folder)
            config = transformers.AutoConfig.from_pretrained(folder)
        else:
            config = cls.config_class(**self.settings)
        model = cls(config).eval()
        for parameter in model.parameters():
            # Random weights of the usual size give results that hardly depend on the input.
            if parameter.ndim > 1:
                torch.nn.init.normal_(parameter, std=parameter[0].numel() ** -0.5)
        model.save_pretrained(folder)
        for make in self.processors:
            make().save_pretrained(folder)
        return model

    def result(self, pipe: Any) -> Any:
        """Return what a pipeline makes of the input."""
        torch.manual_seed(0)
        given = self.given()
        arguments = (given,) if not isinstance(given, dict) else ()
        named = given if isinstance(given, dict) else {}
        return pipe(*arguments, **named, **self.options)


def _images(name: str, **settings: Any) -> Callable[[], Any]:
    return lambda: getattr(transformers, f"{name}ImageProcessor")(**settings)


def _square(name: str, size: int = 16) -> Callable[[], Any]:
    sides = {"height": size, "width": size}
    return _images(name, size=sides, crop_size=sides)


def _samples() -> Any:
    return transformers.Wav2Vec2FeatureExtractor(sampling_rate=RATE)


def _letters() -> Any:
    """Return a tokenizer of VITS, in a folder of its own that ends with the process."""
    characters = " abcdefghijklmnopqrstuvwxyz"
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "vocab.json"
        file.write_text(json.dumps({letter: i + 1 for i, letter in enumerate(characters)}))
        return transformers.VitsTokenizer(
            str(file), pad_token="_", unk_token="<u>", phonemize=False, is_uroman=False
        )


def _clap() -> Any:
    return transformers.ClapFeatureExtractor(
        feature_size=16, sampling_rate=RATE, hop_length=627, max_length_s=10, fft_window_size=1024,
        frequency_max=8000, truncation="rand_trunc",
    )  # fmt: skip


def _clip() -> Any:
    return transformers.CLIPConfig(
        text_config={**BERT, "max_position_embeddings": 64, "vocab_size": 261, "eos_token_id": 2},
        vision_config={**VIT, "image_size": 32},
        projection_dim=32,
    ).to_dict()


_TEXT = {**BERT, "vocab_size": 261, "pad_token_id": 0}
_SENTENCE = "What a day!"
_VITS = {
    "vocab_size": 38, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2,
    "window_size": 4, "ffn_dim": 16, "flow_size": 16, "spectrogram_bins": 9,
    "duration_predictor_num_flows": 2, "duration_predictor_filter_channels": 16,
    "prior_encoder_num_flows": 2, "prior_encoder_num_wavenet_layers": 1,
    "posterior_encoder_num_wavenet_layers": 1, "upsample_initial_channel": 16,
    "upsample_rates": [4, 4], "upsample_kernel_sizes": [8, 8], "resblock_kernel_sizes": [3],
    "resblock_dilation_sizes": [[1, 3]], "depth_separable_num_layers": 1,
    # No noise: the file draws its own.
    "noise_scale": 0.0, "noise_scale_duration": 0.0,
}  # fmt: skip
PIPELINES = (
    Pipeline(
        "text-classification", "BertForSequenceClassification", {**_TEXT, "num_labels": 3},
        lambda: [_SENTENCE, "no"], (texts,), {"top_k": None},
    ),
    Pipeline(
        "token-classification", "BertForTokenClassification", _TEXT, lambda: _SENTENCE, (texts,)
    ),
    Pipeline("fill-mask", "BertForMaskedLM", _TEXT, lambda: "What <mask> day", (texts,)),
    Pipeline("feature-extraction", "BertModel", _TEXT, lambda: _SENTENCE, (texts,)),
    Pipeline(
        "zero-shot-classification", "BertForSequenceClassification",
        {**_TEXT, "num_labels": 3, "label2id": {"contradiction": 0, "neutral": 1, "entailment": 2}},
        lambda: _SENTENCE, (texts,), {"candidate_labels": ["good", "bad"]},
    ),
    Pipeline(
        "text-generation", "LlamaForCausalLM", LLAMA, lambda: _SENTENCE, (tokenizer,),
        {"max_new_tokens": 12, "do_sample": False},
    ),
    Pipeline("image-classification", "ViTForImageClassification", VIT, picture, (_square("ViT"),)),
    Pipeline("image-feature-extraction", "ViTModel", VIT, picture, (_square("ViT"),)),
    Pipeline(
        "object-detection", "YolosForObjectDetection", {}, picture,
        (_images("Yolos", size={"height": 32, "width": 48}),), {"threshold": 0.0},
    ),
    Pipeline(
        "image-segmentation", "SegformerForSemanticSegmentation", {}, picture,
        (_square("Segformer", 32),),
    ),
    Pipeline("depth-estimation", "DPTForDepthEstimation", {}, picture, (_square("DPT", 32),)),
    Pipeline(
        "zero-shot-image-classification", "CLIPModel", _clip(), picture,
        (lambda: transformers.CLIPProcessor(_square("CLIP", 32)(), texts()),),
        {"candidate_labels": ["cat", "mouse"], "hypothesis_template": "{}"},
    ),
    Pipeline(
        "zero-shot-object-detection", "OwlViTForObjectDetection", {},
        lambda: {"image": picture(), "candidate_labels": ["cat", "mouse"]},
        (lambda: transformers.OwlViTProcessor(_square("OwlViT", 32)(), texts()),),
        {"threshold": 0.0},
    ),
    Pipeline("audio-classification", "Wav2Vec2ForSequenceClassification", {}, sound, (_samples,)),
    Pipeline(
        "automatic-speech-recognition", "Wav2Vec2ForCTC", {}, sound, (tokenizer, _samples)
    ),
    Pipeline("text-to-audio", "VitsModel", _VITS, lambda: "what a day", (_letters,)),
    Pipeline(
        "zero-shot-audio-classification", "ClapModel", {}, lambda: sound(10.0),
        (_clap, texts), {"candidate_labels": ["dog", "rain"], "hypothesis_template": "{}"},
    ),
)  # fmt: skip
