"""Modules of diffusers without loops over sizes, against the modules as they are."""

from __future__ import annotations

from typing import Any

import diffusers
import pytest
import torch

from coreai_onnx.errors import ModelSourceError
from coreai_onnx.huggingface.diffusion.components import Component
from coreai_onnx.huggingface.diffusion.whole import counted_layers, one_trace
from tests.support.tolerances import assert_close


def wan(**options: Any) -> Any:
    torch.manual_seed(0)
    config = {"base_dim": 2, "z_dim": 2, "dim_mult": [1, 1, 1, 1], "num_res_blocks": 1}
    means = {"latents_mean": [0.0, 0.0], "latents_std": [1.0, 1.0]}
    return diffusers.AutoencoderKLWan(**config, **means, **options).eval()


@pytest.mark.parametrize(
    "options",
    [{}, {"is_residual": True, "patch_size": 2, "in_channels": 12, "out_channels": 12}],
    ids=["2.1", "2.2"],
)
@pytest.mark.parametrize("frames", [1, 2, 3])
def test_all_frames_of_wan_at_once(options: dict[str, Any], frames: int) -> None:
    vae, counts = wan(**options), []
    latent, video = torch.randn(1, 2, frames, 3, 2), torch.randn(1, 3, 4 * frames - 3, 32, 48)

    def results() -> tuple[torch.Tensor, torch.Tensor]:
        with torch.no_grad(), counted_layers(vae) as count:
            sample, distribution = vae.decode(latent).sample, vae.encode(video).latent_dist
        counts.append(next(count))
        return sample, distribution.parameters

    expected = results()
    with one_trace(vae):
        actual = results()
    for one, other in zip(actual, expected, strict=True):
        assert_close(one, other)
    assert actual[0].shape[2] == video.shape[2]
    assert counts[0] > counts[1] * (frames - 1)
    assert "_decode" not in vars(vae)


def test_a_loop_over_a_batch() -> None:
    """Of slices, which a user asks diffusers for."""
    vae = diffusers.AutoencoderKL(norm_num_groups=4, block_out_channels=(4,))
    vae.enable_slicing()
    calls = {"": {"z": torch.randn(1, 4, 3, 5)}, "batch": {"z": torch.randn(2, 4, 3, 5)}}
    message = r"vae_decoder \(AutoencoderKL\) is not exported: it calls .* for another batch"
    with pytest.raises(ModelSourceError, match=message):
        Component("vae_decoder", vae, calls)
