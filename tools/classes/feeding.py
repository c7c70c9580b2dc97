"""Inputs of a model, by the signature of its forward and the fields of its configuration.

Names leave open what a model takes: features before frames or after, images alone or in a text.
`found_inputs` tries what is plausible, richest first, and keeps what the model runs on.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

import torch

from tools.classes.extra_inputs import EXTRA, extra
from tools.classes.overrides import BINS
from tools.foreign.case import SEED, Inputs, Size

WORDS = 90
"""Ids of words are below it; special tokens have ids from 100 on."""
_COUNTS = re.compile(r"tokens:? *(\d+).*?features:? *(\d+)", re.IGNORECASE | re.DOTALL)
_TEXT = ("input_ids", "attention_mask", "bbox")
_PLACEHOLDERS = ("image_token_id", "image_token_index", "video_token_index")
_PICTURES = ("pixel_values", "pixel_values_videos")
_SOUND = ("input_features", "input_values", "audio_values", "speech")
_EMBEDDINGS = ("inputs_embeds", "query_embeds", "hidden_states", "encoder_hidden_states")
Maker = Callable[[Size], Inputs]


class Feeder:
    """Makes inputs of a model.

    Attributes:
        model: The model.
        config: Its configuration.
        names: The parameters of its forward.
        tokens: How many placeholders of an image a row has.
    """

    def __init__(self, model: Any) -> None:
        """Read the signature of a model."""
        self.model, self.config = model, model.config
        parameters = inspect.signature(model.forward).parameters
        self.names = set(parameters)
        self.required = [
            name
            for name, p in parameters.items()
            if p.default is p.empty and p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)
        ]
        self.tokens = 4

    def value(self, *names: str, default: Any = None) -> Any:
        """Return the first field of one of these names in the configuration or its parts."""
        parts = [self.config, *(self.config.sub_configs and self._parts(self.config))]
        for name in names:
            for part in parts:
                found = getattr(part, name, None)
                if found is not None:
                    return found
        return default

    def _parts(self, config: Any) -> list[Any]:
        found = []
        for name in config.sub_configs:
            part = getattr(config, name, None)
            if part is not None:
                found += [part, *self._parts(part)]
        return found

    # ------------------------------------------------------------------ values
    def ids(self, size: Size) -> torch.Tensor:
        """Return ids of words, an end of sentence last."""
        high = min(WORDS, int(self.value("vocab_size", default=WORDS)))
        part = getattr(self.config, "text_config", None)
        length = min(size.length, getattr(part, "max_position_embeddings", None) or size.length)
        ids = torch.randint(4, high, (size.batch, length))
        end = self.value("eos_token_id")
        end = end[0] if isinstance(end, list | tuple) else end
        if isinstance(end, int) and 0 <= end < high:
            ids[:, -1] = end
        question = self.value("question_token_id")
        if question is not None:
            ids[:, 1] = question
        return ids

    def side(self, size: Size) -> tuple[int, int]:
        """Return the height and the width of an image."""
        side = self.value("image_size")
        if side is None:
            return (size.side, size.side)
        return tuple(side[-2:]) if isinstance(side, list | tuple) else (side, side)

    def channels(self) -> int:
        """Return the number of channels of an image."""
        return int(self.value("num_channels", "in_channels", "in_chans", "channels", default=3))

    def bins(self) -> int:
        """Return the number of bins of a spectrogram."""
        return BINS.get(self.config.model_type) or int(
            self.value("num_mel_bins", "feature_size", "input_feat_per_channel", "num_mel_channels",
                       "input_dim", "n_mels", default=80)
        )  # fmt: skip

    def image(self, size: Size) -> torch.Tensor:
        """Return images ``[batch, channels, height, width]``."""
        return torch.randn(size.batch, self.channels(), *self.side(size))

    def video(self, size: Size) -> torch.Tensor:
        """Return videos ``[batch, frames, channels, height, width]``."""
        frames = int(self.value("num_frames", "frames_per_clip", default=2))
        return torch.randn(size.batch, frames, self.channels(), *self.side(size))

    def text(self, size: Size, *, pictures: bool) -> Inputs:
        """Return the inputs of a text, with placeholders for images."""
        ids = self.ids(size)
        placeholder = self.value(*_PLACEHOLDERS) if pictures else None
        holds = isinstance(placeholder, int) and placeholder >= 0
        if holds:
            images = torch.full((size.batch, self.tokens), placeholder)
            ids = torch.cat([ids[:, :1], images, ids[:, 1:]], dim=1)
        given = {"input_ids": ids}
        if "attention_mask" in self.names:
            given["attention_mask"] = torch.ones_like(ids)
            if not holds:
                given["attention_mask"][0, -3:] = 0
        if "mm_token_type_ids" in self.names and holds:
            given["mm_token_type_ids"] = (ids == placeholder).long()
        if "bbox" in self.names:
            corners = torch.randint(0, 20, (*ids.shape, 2))
            given["bbox"] = torch.cat([corners, corners + 5], dim=-1)
        if type(self.model).__name__.endswith("ForMultipleChoice"):
            given = {name: torch.stack([x, x.flip(0)], dim=1) for name, x in given.items()}
        return given

    def codes(self, size: Size) -> Inputs:
        """Return ids of several codebooks, which are rows of their own."""
        books = int(self.value("num_codebooks"))
        return {"input_ids": self.ids(Size(size.batch * books, size.length, 0))}

    def decoder(self, size: Size) -> Inputs:
        """Return the inputs of the decoder of an encoder-decoder."""
        takes = "decoder_input_ids" in self.names and self.value("is_encoder_decoder")
        needed = "decoder_input_ids" in self.required
        # Such a head shifts the text itself, and reads the end of the sentence in it.
        shifts = type(self.model).__name__.endswith("ForSequenceClassification")
        if shifts or not (takes or needed):
            return {}
        if self.config.model_type == "dia":
            channels = [self.ids(Size(size.batch, size.length // 2, 0)) for _ in range(9)]
            return {"decoder_input_ids": torch.stack(channels, dim=-1)}
        books = int(self.value("num_codebooks", default=1))
        return {"decoder_input_ids": self.ids(Size(size.batch * books, size.length // 2, 0))}

    def patches(self, size: Size) -> Inputs:
        """Return images as rows of patches, and the grid of each image."""
        patch = int(self.value("patch_size", default=8))
        depth = int(self.value("temporal_patch_size", "patch_temporal", default=1))
        rows = 4 * int(self.value("spatial_merge_size", default=1)) // 2
        features = self.channels() * depth * patch * patch
        grid = torch.tensor([[1, rows, rows]] * size.batch)
        values = "hidden_states" if "hidden_states" in self.required else "pixel_values"
        name = "grid_thw" if "grid_thw" in self.names else "image_grid_thw"
        return {values: torch.randn(size.batch * rows * rows, features), name: grid}

    def square_patches(self, size: Size) -> Inputs:
        """Return images as patches ``[number, channels, height, width]``."""
        patch = int(self.value("patch_size", default=8))
        return {
            name: x.view(len(x), -1, patch, patch) if x.is_floating_point() else x
            for name, x in self.patches(size).items()
        }

    def rows_of_patches(self, size: Size) -> Inputs:
        """Return images as a row of patches each, and the size of each in patches."""
        patch = int(self.value("patch_size", default=16))
        side = 4
        given = {"pixel_values": torch.randn(size.batch, side**2, self.channels() * patch**2)}
        if "pixel_attention_mask" in self.names:
            given["pixel_attention_mask"] = torch.ones(size.batch, side**2, dtype=torch.int64)
            given["spatial_shapes"] = torch.full((size.batch, 2), side)
        return given

    def frames(self, name: str, shape: tuple[int, ...]) -> Inputs:
        """Return sound, with a mask of its frames if the model needs one."""
        given = {name: torch.randn(shape)}
        length = max(n for n in shape[1:] if n != self.bins() or len(set(shape[1:])) == 1)
        for mask in ("input_features_mask", "feature_attention_mask"):
            if mask in self.names:
                given[mask] = torch.ones(shape[0], length, dtype=torch.int64)
        return given

    def embeddings(self, size: Size) -> Inputs:
        """Return hidden states, for a model that takes nothing else."""
        width = int(self.value("hidden_size", "d_model", default=32))
        if self.value("downsampling_ratios"):
            return {"hidden_states": torch.randn(size.batch, self.channels(), 3200)}
        names = [name for name in self.required if name in _EMBEDDINGS]
        return {name: torch.randn(size.batch, size.length, width) for name in names}

    # ------------------------------------------------------------------ choices
    def pictures(self) -> Iterator[Maker]:
        """Yield what images can be."""
        if self.names & {"image_grid_thw", "grid_thw"}:
            yield self.patches
            yield self.square_patches
        if self.names & {"pixel_position_ids", "spatial_shapes"}:
            yield self.rows_of_patches
        for name in _PICTURES:
            if name in self.names:
                yield lambda size, name=name: {name: self.image(size)}
                yield lambda size, name=name: {name: self.video(size)}

    def sound(self) -> Iterator[Maker]:
        """Yield what sound can be: features, spectrograms, samples."""
        bins = self.bins()
        frames = 2 * int(self.value("max_source_positions", default=24))
        frames = int(self.value("max_length", "spec_size", default=frames))
        for name in _SOUND:
            if name not in self.names:
                continue
            for shape in (
                lambda s: (s.batch, bins, frames),
                lambda s: (s.batch, 8 * s.length, bins),
                lambda s: (s.batch, frames, bins),
                lambda s: (s.batch, 1, frames, bins),
                lambda s: (s.batch, 160 * s.length),
                lambda s: (s.batch, 1, 160 * s.length),
                lambda s: (s.batch, 192 * s.length),
                lambda s: (s.batch, 1600 * s.length),
            ):
                yield lambda size, name=name, shape=shape: self.frames(name, shape(size))

    def choices(self) -> Iterator[Maker]:
        """Yield makers of inputs, the richest first; those with rare inputs where these matter."""
        common = list(self._common())
        rare = self.names & EXTRA.keys()
        more = [self._joined([each, self._extra]) for each in common if rare]
        more += [self._joined([self._extra])] if rare else []
        first = rare & {"noise", *self.required}
        yield from (*more, *common) if first else (*common, *more)
        if "input_ids" in self.names and self.value("num_codebooks"):
            yield self._joined([self.codes])

    def _extra(self, size: Size) -> Inputs:
        return extra(self, size)

    def _common(self) -> Iterator[Maker]:
        pictures, sound = list(self.pictures()), list(self.sound())
        texts: list[bool] = [True, False] if "input_ids" in self.names else [False]
        for with_text, *others in product(texts, pictures or [None], sound or [None]):
            if with_text or any(others):
                yield self._joined([each for each in others if each], with_text=with_text)
        for one in (*pictures, *sound):
            yield self._joined([one])
        if "input_ids" in self.names:
            yield self._joined([], with_text=True)
        if set(self.required) & set(_EMBEDDINGS):
            yield self._joined([self.embeddings])

    def _joined(self, others: list[Maker], *, with_text: bool = False) -> Maker:
        def made(size: Size) -> Inputs:
            torch.manual_seed(SEED + size.batch)
            given: Inputs = {}
            if with_text:
                given |= self.text(size, pictures=any(others))
            for other in others:
                given |= other(size)
            return {**given, **self.decoder(size)}

        return made


def found_inputs(model: Any, sizes: tuple[Size, ...]) -> list[Inputs]:
    """Return inputs of a model at each size.

    Raises:
        ValueError: If the model runs on none of the candidates; with what it says to the first.
    """
    feeder = Feeder(model)
    first = ""
    for maker in feeder.choices():
        feeder.tokens, features = 4, 0
        for attempt in range(3):
            try:
                with torch.no_grad():
                    made = [maker(size) for size in sizes]
                    for each in made:
                        model(**each)
            except Exception as error:  # noqa: BLE001 - a model rejects inputs with anything
                first = first or f"{type(error).__name__}: {error}"
                counts = _COUNTS.search(str(error))
                features = features or int(counts[2]) if counts else 0
                # What is counted is the images' rows, or the elements of these.
                width = int(feeder.value("hidden_size", default=1)) if attempt else 1
                feeder.tokens = features // (sizes[0].batch * width)
                if not feeder.tokens:
                    break
            else:
                return made
    raise ValueError(first or f"no rule for the inputs {', '.join(feeder.required)}")
