"""Embeddings of texts, dense, sparse or one for each token: modules of sentence-transformers.

``modules.json`` of a folder lists them; each reads and changes named features, as there.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from coreai_onnx.errors import ModelSourceError, failures_as
from coreai_onnx.huggingface.heads.head import Head
from coreai_onnx.huggingface.heads.tasks import Task

MODULES = "modules.json"
_TOKENS, _SENTENCE, _MASK = "token_embeddings", "sentence_embedding", "attention_mask"
Features = dict[str, torch.Tensor]


class Pooling(torch.nn.Module):
    """The embedding of a sentence from those of its tokens.

    Args:
        mode: ``"mean"`` or ``"max"`` of the tokens that are not padding, or ``"cls"``, that of the
            first token.
    """

    def __init__(self, mode: str = "mean") -> None:
        """Choose the mode.

        Raises:
            ModelSourceError: If it is another one.
        """
        super().__init__()
        if mode not in ("mean", "max", "cls"):
            raise ModelSourceError(f"the pooling {mode!r} is not supported")
        self.mode = mode

    def forward(self, features: Features) -> Features:
        """Add the embedding of the sentence."""
        tokens = features[_TOKENS]
        mask = features[_MASK][..., None]
        if self.mode == "cls":
            sentence = tokens[:, 0]
        elif self.mode == "max":
            sentence = tokens.masked_fill(mask == 0, -1e9).amax(1)  # sentence-transformers' number
        else:  # sentence-transformers divides by at least 1e-9
            mask = mask.to(tokens.dtype)
            sentence = (tokens * mask).sum(1) / mask.sum(1).clamp(min=1e-9)
        return features | {_SENTENCE: sentence}


class SparsePooling(torch.nn.Module):
    """Weights of the words of the vocabulary, most of them 0: SPLADE's log(1 + relu(logits)).

    Args:
        strategy: ``"max"`` or ``"sum"`` of the tokens.
        activation: ``"relu"``, or ``"log1p_relu"`` for two logarithms.
    """

    def __init__(self, strategy: str = "max", activation: str = "relu") -> None:
        """Choose the strategy.

        Raises:
            ModelSourceError: If the strategy or the activation is not supported.
        """
        super().__init__()
        if strategy not in ("max", "sum") or activation not in ("relu", "log1p_relu"):
            raise ModelSourceError(f"the pooling {strategy!r} of {activation!r} is not supported")
        self.strategy, self.activation = strategy, activation

    def forward(self, features: Features) -> Features:
        """Add the weights of the words."""
        logits = features[_TOKENS]
        weights = (logits * features[_MASK][..., None].to(logits.dtype)).relu().log1p()
        if self.activation == "log1p_relu":
            weights = weights.log1p()
        sentence = weights.amax(1) if self.strategy == "max" else weights.sum(1)
        return features | {_SENTENCE: sentence}


class Normalization(torch.nn.Module):
    """Embeddings of length 1.

    Args:
        name: Of which feature.
    """

    def __init__(self, name: str = _SENTENCE) -> None:
        """Choose the feature."""
        super().__init__()
        self.name = name

    def forward(self, features: Features) -> Features:
        """Replace the embeddings."""
        return features | {self.name: torch.nn.functional.normalize(features[self.name], dim=-1)}


class Projection(torch.nn.Module):
    """A linear layer on embeddings.

    Args:
        weights: ``linear.weight`` and, with a bias, ``linear.bias``.
        name: Of which feature.
        activation: The class of the activation after it.
    """

    def __init__(self, weights: Mapping[str, torch.Tensor], name: str, activation: type) -> None:
        """Take the weights."""
        super().__init__()
        bias = weights.get("linear.bias")
        outputs, inputs = weights["linear.weight"].shape
        self.linear = torch.nn.Linear(inputs, outputs, bias=bias is not None)
        self.load_state_dict(dict(weights))
        self.activation = activation()
        self.name = name

    def forward(self, features: Features) -> Features:
        """Replace the embeddings."""
        return features | {self.name: self.activation(self.linear(features[self.name]))}


def embedding_task_of(folder: Path) -> str:
    """Return the task of a folder with ``modules.json``."""
    names = {module.rpartition(".")[2] for module, _ in _modules(folder)}
    if "SpladePooling" in names:
        return "sparse-embedding"
    return "sentence-similarity" if "Pooling" in names else "late-interaction"


def modules_of(folder: Path | None, task: Task) -> list[torch.nn.Module]:
    """Return what makes embeddings of the result of a model.

    Args:
        folder: The folder of the model; None for a model object.
        task: The task; without ``modules.json``, the mean of the tokens, or SPLADE's maximum.

    Raises:
        ModelSourceError: If a file is broken, or there is a module that is not supported, or none
            that projects the embeddings of tokens for late interaction.
    """
    if folder is None or not (folder / MODULES).is_file():
        if task.name == "late-interaction":
            raise ModelSourceError(
                f"late interaction needs a folder with {MODULES}, which names the projection of "
                "the embeddings of tokens"
            )
        return [SparsePooling() if task.name == "sparse-embedding" else Pooling()]
    with failures_as(ModelSourceError, f"cannot read {folder / MODULES}"):
        modules = [
            module
            for name, path in _modules(folder)
            if (module := _module(folder, name, path, task)) is not None
        ]
        # PyLate normalizes after the modules.
        if any(name.startswith("pylate.") for name, _ in _modules(folder)):
            modules.append(Normalization(_TOKENS))
    return modules


def _module(folder: Path, full_name: str, path: str, task: Task) -> torch.nn.Module | None:
    name = full_name.rpartition(".")[2]
    # Masks of scores are applied where embeddings are compared.
    if name in ("Transformer", "MLMTransformer", "MultiVectorMask"):
        return None
    file = folder / path / "config.json"
    # Normalize has had no configuration for long.
    settings = _read(file) if name != "Normalize" or file.is_file() else {}
    feature = _TOKENS if task.name == "late-interaction" else _SENTENCE
    feature = settings.get("module_input_name", feature)
    if settings.get("module_output_name") not in (None, feature) or settings.get("use_residual"):
        raise ModelSourceError(f"{file}: a residual or another output is not supported")
    if name == "Pooling":
        return Pooling(_mode(settings))
    if name == "SpladePooling":
        return SparsePooling(
            settings.get("pooling_strategy", "max"), settings.get("activation_function", "relu")
        )
    if name == "Normalize":
        return Normalization(feature)
    if name == "Dense":
        activation = settings.get("activation_function", "torch.nn.modules.activation.Tanh")
        activation_class = getattr(torch.nn, activation.rpartition(".")[2], None)
        if not activation.startswith("torch.nn.") or activation_class is None:
            raise ModelSourceError(f"{file}: the activation {activation} is not supported")
        return Projection(_weights(folder / path), feature, activation_class)
    raise ModelSourceError(f"{folder / MODULES}: the module {name} is not supported")


def _mode(settings: Mapping[str, Any]) -> str:
    """Return the mode of a pooling: a name, or one of the flags of older versions."""
    names = {"mean_tokens": "mean", "cls_token": "cls", "max_tokens": "max"}
    flags = [name for name, is_on in settings.items() if is_on is True and "pooling_mode" in name]
    modes = [name.removeprefix("pooling_mode_") for name in flags]
    mode = settings.get("pooling_mode", modes[0] if len(modes) == 1 else modes)
    return names.get(str(mode), str(mode))


def _weights(folder: Path) -> Mapping[str, torch.Tensor]:
    if (folder / "model.safetensors").is_file():
        return load_file(folder / "model.safetensors")
    weights: Mapping[str, torch.Tensor] = torch.load(
        folder / "pytorch_model.bin", weights_only=True
    )
    return weights


class SentenceHead(Head):
    """A text model that returns embeddings."""

    def __init__(
        self, model: torch.nn.Module, task: Task, modules: Sequence[torch.nn.Module]
    ) -> None:
        """Apply modules to the last hidden state, or to the logits, of a model; see `Head`."""
        # The constructor of `Head` calls `_result`, before which torch takes no modules.
        self._embed = list(modules)
        super().__init__(model, task)
        self.embed = torch.nn.ModuleList(modules)

    def _result(self, inputs: Sequence[torch.Tensor]) -> Any:
        result = super()._result(inputs)
        tokens = result["logits" if "logits" in result else "last_hidden_state"]
        features = {_TOKENS: tokens, _MASK: inputs[self.input_names.index(_MASK)]}
        for module in self._embed:
            features = module(features)
        return features


def _modules(folder: Path) -> list[tuple[str, str]]:
    """Return class and folder of the modules; their package depends on the version."""
    return [(module["type"], module["path"]) for module in _read(folder / MODULES)]


def _read(file: Path) -> Any:
    return json.loads(file.read_text())
