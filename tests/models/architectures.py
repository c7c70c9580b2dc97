"""Small models of well-known architectures, with random weights and a fixed seed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import transformers

SEED = 20260101
VOCABULARY = 128


class Tokens(torch.nn.Module):
    """A language model as a function of its token ids (and mask)."""

    def __init__(self, model: torch.nn.Module, output: str, **fixed: Any) -> None:
        super().__init__()
        self.model, self.output, self.fixed = model, output, fixed

    def forward(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor | None = None
    ) -> torch.Tensor:
        result = self.model(input_ids=input_ids, attention_mask=attention_mask, **self.fixed)
        value: torch.Tensor = result[self.output]
        return value


class ResidualBlock(torch.nn.Module):
    """Two convolutions with batch norms and a shortcut."""

    def __init__(self, inner: int, outer: int, stride: int) -> None:
        super().__init__()
        self.first = torch.nn.Conv2d(inner, outer, 3, stride, padding=1, bias=False)
        self.first_norm = torch.nn.BatchNorm2d(outer)
        self.second = torch.nn.Conv2d(outer, outer, 3, padding=1, bias=False)
        self.second_norm = torch.nn.BatchNorm2d(outer)
        self.shortcut = torch.nn.Conv2d(inner, outer, 1, stride, bias=False)
        self.relu = torch.nn.ReLU(inplace=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.relu(self.first_norm(self.first(x)))
        y = self.second_norm(self.second(y))
        return self.relu(y + self.shortcut(x))


class ResNet(torch.nn.Module):
    """A small residual network on images."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = torch.nn.Conv2d(3, 8, 7, stride=2, padding=3, bias=False)
        self.norm = torch.nn.BatchNorm2d(8)
        self.relu = torch.nn.ReLU(inplace=True)
        self.pool = torch.nn.MaxPool2d(3, stride=2, padding=1)
        self.blocks = torch.nn.Sequential(ResidualBlock(8, 8, 1), ResidualBlock(8, 16, 2))
        self.average = torch.nn.AdaptiveAvgPool2d(1)
        self.classify = torch.nn.Linear(16, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.blocks(self.pool(self.relu(self.norm(self.stem(x)))))
        return self.classify(torch.flatten(self.average(x), 1))


@dataclass(frozen=True)
class Architecture:
    """A model and what to feed it.

    Attributes:
        name: For test ids and tables.
        make: Builds the module in float32, ``eval``.
        inputs: Arguments for a batch size and a length.
        dynamic: ``dynamic_shapes`` for ``torch.export.export``.
    """

    name: str
    make: Callable[[], torch.nn.Module]
    inputs: Callable[[int, int], tuple[torch.Tensor, ...]]
    dynamic: Any

    def module(self, dtype: torch.dtype = torch.float32) -> torch.nn.Module:
        """Return the module, with the same weights each time."""
        torch.manual_seed(SEED)
        module = self.make().eval()
        for parameter in module.parameters():
            if parameter.ndim == 1:  # norms and biases start as ones and zeros, which hide mistakes
                torch.nn.init.normal_(parameter, mean=parameter.detach().mean().item(), std=0.1)
        return module.to(dtype)

    def arguments(self, batch: int, length: int, dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
        """Return random arguments; floating ones in ``dtype``."""
        torch.manual_seed(SEED + batch * 1000 + length)
        given = self.inputs(batch, length)
        return tuple(x.to(dtype) if x.is_floating_point() else x for x in given)


def _token_dims(count: int) -> tuple[dict[int, Any], ...]:
    batch, seq = torch.export.Dim("batch"), torch.export.Dim("seq", max=64)
    return ({0: batch, 1: seq},) * count


def _ids(batch: int, length: int) -> tuple[torch.Tensor, ...]:
    return (torch.randint(0, VOCABULARY, (batch, length)),)


def _ids_and_mask(batch: int, length: int) -> tuple[torch.Tensor, ...]:
    mask = torch.ones(batch, length, dtype=torch.int64)
    mask[0, length - length // 3 :] = 0
    return (*_ids(batch, length), mask)


def _images(batch: int, length: int) -> tuple[torch.Tensor, ...]:
    return (torch.randn(batch, 3, 32 + length, 32 + length),)


def _bert() -> torch.nn.Module:
    config = transformers.BertConfig(
        vocab_size=VOCABULARY,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
    )
    return Tokens(transformers.BertModel(config), "last_hidden_state")


def _gpt2() -> torch.nn.Module:
    config = transformers.GPT2Config(
        vocab_size=VOCABULARY,
        n_embd=64,
        n_layer=2,
        n_head=4,
        bos_token_id=0,
        eos_token_id=1,
    )
    return Tokens(transformers.GPT2LMHeadModel(config), "logits", use_cache=False)


def _llama() -> torch.nn.Module:
    config = transformers.LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
    )
    return Tokens(transformers.LlamaForCausalLM(config), "logits", use_cache=False)


def _image_dims() -> Any:
    batch, size = torch.export.Dim("batch"), torch.export.Dim("size", min=9, max=128)
    return ({0: batch, 2: size, 3: size},)


FIRST_LIGHT = (
    Architecture("bert", _bert, _ids_and_mask, _token_dims(2)),
    Architecture("gpt2", _gpt2, _ids, _token_dims(1)),
    Architecture("llama", _llama, _ids, _token_dims(1)),
    Architecture("resnet", ResNet, _images, _image_dims()),
)
"""The architectures every change must keep right."""
