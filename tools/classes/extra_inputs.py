"""Inputs that few models have, by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

from tools.foreign.case import Inputs, Size

if TYPE_CHECKING:
    from tools.classes.feeding import Feeder

REGIONS = 5
"""Regions of an image that another model has found."""
Made = Callable[["Feeder", Size], torch.Tensor]


def _series(feeder: Feeder, size: Size, steps: int) -> torch.Tensor:
    channels = feeder.value("num_input_channels", default=feeder.value("input_size", default=1))
    shape = (size.batch, steps, channels)
    of_patches = feeder.config.model_type.startswith("patchts")
    return torch.randn(shape if channels > 1 or of_patches else shape[:2])


def _past(feeder: Feeder) -> int:
    lags = feeder.value("lags_sequence", default=[0])
    return int(feeder.value("context_length", "prediction_length", default=16)) + max(lags)


def _time(feeder: Feeder, size: Size, steps: int) -> torch.Tensor:
    return torch.randn(size.batch, steps, int(feeder.value("num_time_features", default=0)))


def _future(feeder: Feeder) -> int:
    return int(feeder.value("prediction_length", default=4))


def _steps(width: str) -> Made:
    """Return random values of each step of a trajectory."""
    return lambda f, s: torch.randn(s.batch, s.length // 2, int(f.value(width, default=1)))


def _patch_rows(feeder: Feeder, size: Size) -> torch.Tensor:
    """Return patches whose first two values are their row and column."""
    width = 3 * int(feeder.value("patch_size", default=16)) ** 2
    rows = torch.randn(size.batch, size.length, 2 + width)
    rows[..., 0], rows[..., 1] = torch.arange(1, size.length + 1), 1
    return rows


def _noise(feeder: Feeder, size: Size) -> torch.Tensor:
    return torch.rand(size.batch, _patches(feeder, size))


def _regions(width: str) -> Made:
    return lambda f, s: torch.rand(s.batch, REGIONS, int(f.value(width, default=32)))


def _patches(feeder: Feeder, size: Size) -> int:
    """Return how many patches an image has."""
    height, width = feeder.side(size)
    patch = int(feeder.value("patch_size", default=16))
    return (height // patch) * (width // patch)


def _grid(_: Feeder, size: Size) -> torch.Tensor:
    """Return the row and the column of each of 16 patches of an image."""
    places = torch.cartesian_prod(torch.arange(4), torch.arange(4))
    return places.expand(size.batch, -1, -1).contiguous()


def _tubes(feeder: Feeder, size: Size) -> torch.Tensor:
    """Return which parts of a video are hidden: the same number in each row."""
    tubes = _patches(feeder, size) * feeder.value("num_frames", default=1)
    hidden = torch.arange(int(tubes // feeder.value("tubelet_size", default=1))) % 2 == 0
    return hidden.expand(size.batch, -1).contiguous()


EXTRA: dict[str, Made] = {
    "pixel_position_ids": _grid,
    "bool_masked_pos": _tubes,
    "prompt_pixel_values": lambda f, s: f.image(s),
    "prompt_masks": lambda f, s: f.image(s),
    "image_attention_mask": lambda _, s: torch.ones(s.batch, s.length, 2, dtype=torch.int64),
    "task_inputs": lambda f, s: torch.randint(4, 90, (s.batch, int(f.value("task_seq_len")))),
    "target_sizes": lambda _, s: torch.full((s.batch, 2), 4),
    "past_values_padding": lambda f, s: torch.zeros(s.batch, _past(f), dtype=torch.int64),
    "freq": lambda _, s: torch.zeros(s.batch, 1, dtype=torch.int64),
    "merge_sizes": lambda _, s: torch.ones(s.batch, dtype=torch.int64),
    "decoder_input_values": lambda f, s: torch.randn(
        s.batch, s.length, int(f.value("num_mel_bins", default=80))
    ),
    "inputs": lambda f, s: torch.randn(s.batch, s.length, int(f.value("d_model", default=32))),
    "state": _steps("max_state_dim"),
    "latents": lambda f, s: torch.randn(s.batch, int(f.value("hidden_size")), s.length),
    "qformer_input_ids": lambda f, s: f.ids(s),
    "visual_feats": _regions("visual_feat_dim"),
    "visual_pos": _regions("visual_pos_dim"),
    "visual_embeds": _regions("visual_embedding_dim"),
    "flattened_patches": _patch_rows,
    "noise": _noise,
    "audio_mel": lambda f, s: torch.randn(
        s.batch, 8 * s.length, int(f.value("input_feat_size", default=80))
    ),
    "audio_mel_mask": lambda _, s: torch.zeros(s.batch, 8 * s.length, dtype=torch.bool),
    "encoder_hidden_states": lambda f, s: torch.randn(
        s.batch, 4, int(f.value("encoder_hidden_size", "hidden_size", "d_model", default=32))
    ),
    "past_values": lambda f, s: _series(f, s, _past(f)),
    "past_observed_mask": lambda f, s: torch.ones_like(_series(f, s, _past(f))),
    "past_time_features": lambda f, s: _time(f, s, _past(f)),
    "future_time_features": lambda f, s: _time(f, s, _future(f)),
    "states": _steps("state_dim"),
    "actions": _steps("act_dim"),
    "rewards": _steps("reward_dim"),
    "returns_to_go": _steps("reward_dim"),
    "timesteps": lambda _, s: torch.arange(s.length // 2).expand(s.batch, -1).contiguous(),
}


def extra(feeder: Feeder, size: Size) -> Inputs:
    """Return the inputs of these names that a model has."""
    return {name: made(feeder, size) for name, made in EXTRA.items() if name in feeder.names}
