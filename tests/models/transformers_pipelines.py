"""Tasks of transformers' ``pipeline``, each with a small model, its processor and an input."""

from __future__ import annotations

import importlib.util
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


def film() -> str:
    """Write a film of 8 pictures, 32 × 32, and return its path."""
    import av  # only this pipeline needs it

    path = Path(tempfile.mkdtemp()) / "film.mp4"
    with av.open(str(path), "w") as container:
        stream = container.add_stream("mpeg4", rate=4)
        stream.width = stream.height = 32
        for i in range(8):
            pixels = np.full((32, 32, 3), 30 * i, np.uint8)
            pixels[4 * i :, :, 0] = 200
            for packet in stream.encode(av.VideoFrame.from_ndarray(pixels, "rgb24")):
                container.mux(packet)
        for packet in stream.encode():
            container.mux(packet)
    return str(path)


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


def _questions() -> Any:
    made = texts()
    made.model_max_length = 128
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
        generation: Settings of ``generate``.
        include: What the exported file computes beside the model.
        needs: A package that transformers needs for it; without it, the case is not there.
    """

    task: str
    architecture: str
    settings: Mapping[str, Any]
    given: Callable[[], Any]
    processors: tuple[Callable[[], Any], ...]
    options: Mapping[str, Any] = field(default_factory=dict)
    generation: Mapping[str, Any] = field(default_factory=dict)
    include: tuple[str, ...] = ()
    needs: str = ""

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
        if self.generation:
            model.generation_config = transformers.GenerationConfig(**self.generation)
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


def _hearing() -> Any:
    """Return the processor of a Whisper that hears a second of English or German."""
    vocabulary = tokenizer().get_vocab()
    made = transformers.WhisperTokenizer({**vocabulary, "<|endoftext|>": len(vocabulary)}, [])
    special = "startoftranscript en de translate transcribe startoflm startofprev nospeech"
    names = [f"<|{name}|>" for name in (*special.split(), "notimestamps")]
    made.add_special_tokens({"additional_special_tokens": names})
    made.add_tokens([transformers.AddedToken(f"<|{i / 50:.2f}|>") for i in range(51)])
    features = transformers.WhisperFeatureExtractor(16, chunk_length=1, n_fft=400)
    return transformers.WhisperProcessor(features, made)


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
_SWIN = {
    "model_type": "swin", "image_size": 64, "patch_size": 4, "embed_dim": 8,
    "depths": [1, 1, 1, 1], "num_heads": [1, 1, 2, 2], "window_size": 4,
    "out_features": ["stage1", "stage2", "stage3", "stage4"],
}  # fmt: skip
_MASKFORMER = {
    "backbone_config": _SWIN, "fpn_feature_size": 32, "mask_feature_size": 32,
    "decoder_config": {
        "model_type": "detr", "d_model": 32, "num_queries": 8, "decoder_layers": 1,
        "decoder_attention_heads": 2, "decoder_ffn_dim": 32, "encoder_layers": 1,
    },
}  # fmt: skip
_MASK2FORMER = {
    "backbone_config": _SWIN, "feature_size": 32, "mask_feature_size": 32, "hidden_dim": 32,
    "num_queries": 8, "encoder_layers": 1, "decoder_layers": 2, "num_attention_heads": 2,
    "encoder_feedforward_dim": 32, "dim_feedforward": 32,
}  # fmt: skip
_WHISPER = {
    "vocab_size": 320, "d_model": 32, "num_mel_bins": 16, "max_source_positions": 50,
    "max_target_positions": 64, "encoder_layers": 1, "decoder_layers": 2,
    "encoder_attention_heads": 2, "decoder_attention_heads": 2, "encoder_ffn_dim": 32,
    "decoder_ffn_dim": 32, "pad_token_id": 259, "bos_token_id": 259, "eos_token_id": 259,
    "decoder_start_token_id": 260,
}  # fmt: skip
_MOONSHINE = {
    "vocab_size": 259, "hidden_size": 32, "intermediate_size": 16, "encoder_num_hidden_layers": 1,
    "decoder_num_hidden_layers": 2, "encoder_num_attention_heads": 4,
    "decoder_num_attention_heads": 4,
}  # fmt: skip
_SPEECH2TEXT = {
    "vocab_size": 259, "d_model": 32, "encoder_layers": 1, "decoder_layers": 2,
    "encoder_attention_heads": 2, "decoder_attention_heads": 2, "encoder_ffn_dim": 32,
    "decoder_ffn_dim": 32, "input_feat_per_channel": 16, "conv_channels": 32,
    "max_source_positions": 200, "max_target_positions": 64, "pad_token_id": 0,
    "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 2,
}  # fmt: skip
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
_ALL = (
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
    *(
        Pipeline(
            "image-segmentation", name, settings, picture,
            (_images(processor, size={"height": size, "width": size}),), {"threshold": 0.0},
            needs="" if name == "DetrForSegmentation" else "scipy",
        )
        for name, processor, size, settings in (
            ("DetrForSegmentation", "Detr", 224, {}),
            ("MaskFormerForInstanceSegmentation", "MaskFormer", 64, _MASKFORMER),
            ("Mask2FormerForUniversalSegmentation", "Mask2Former", 64, _MASK2FORMER),
        )
    ),
    Pipeline(
        "video-classification", "VideoMAEForVideoClassification", {}, film, (_square("VideoMAE"),),
        needs="av",
    ),
    Pipeline(
        "document-question-answering", "LayoutLMForQuestionAnswering",
        {**_TEXT, "max_2d_position_embeddings": 1024, "max_position_embeddings": 128},
        lambda: {
            "image": None, "question": "who?", "word_boxes": [
                ("Ada", [10, 20, 300, 90]), ("and", [320, 20, 400, 90]), ("Bob", [420, 20, 990, 90])
            ],
        },
        (_questions,), {"handle_impossible_answer": False},
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
    Pipeline(
        "automatic-speech-recognition", "WhisperForConditionalGeneration", _WHISPER,
        lambda: sound(2.5), (_hearing,), {"return_timestamps": "word"},
        {
            "decoder_start_token_id": 260, "bos_token_id": 259, "eos_token_id": 259,
            "pad_token_id": 259, "lang_to_id": {"<|en|>": 261, "<|de|>": 262},
            "task_to_id": {"translate": 263, "transcribe": 264}, "no_timestamps_token_id": 268,
            "is_multilingual": True, "max_length": 40, "max_initial_timestamp_index": 10,
            "alignment_heads": [[0, 0], [1, 1]],
        },
        ("cross_attentions",),
    ),
    Pipeline(
        "automatic-speech-recognition", "MoonshineForConditionalGeneration", _MOONSHINE, sound,
        (tokenizer, _samples),
    ),
    Pipeline(
        "automatic-speech-recognition", "Speech2TextForConditionalGeneration", _SPEECH2TEXT, sound,
        (tokenizer, lambda: transformers.Speech2TextFeatureExtractor(16, num_mel_bins=16)),
        {"generate_kwargs": {"max_new_tokens": 16}},
    ),
    Pipeline("text-to-audio", "VitsModel", _VITS, lambda: "what a day", (_letters,)),
    Pipeline(
        "zero-shot-audio-classification", "ClapModel", {}, lambda: sound(10.0),
        (_clap, texts), {"candidate_labels": ["dog", "rain"], "hypothesis_template": "{}"},
    ),
)  # fmt: skip
PIPELINES = tuple(case for case in _ALL if not case.needs or importlib.util.find_spec(case.needs))
