"""Pipelines of diffusers: from text encoders, denoiser and autoencoder to a folder, and back."""

from coreai_onnx.huggingface.diffusion.running import open_pipeline

__all__ = ["open_pipeline"]
