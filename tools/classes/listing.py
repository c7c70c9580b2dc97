"""The model classes of the installed transformers, by their auto classes."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from itertools import zip_longest

from transformers.models.auto import modeling_auto
from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

BESIDE = 3
"""transformers' own exporter is measured on every third class."""
_HEADS_FIRST = ("ForCausalLM", "ForConditionalGeneration", "LMHeadModel")


@dataclass(frozen=True)
class Job:
    """A model class of transformers.

    Attributes:
        model_type: The key in transformers' mappings: ``llama``.
        name: The name of the class: ``LlamaForCausalLM``.
        beside: Whether transformers' own exporter is measured as well.
    """

    model_type: str
    name: str
    beside: bool = False

    @property
    def key(self) -> tuple[str, ...]:
        """What the job is shown and kept as."""
        return (self.name,)


@functools.cache
def every_class() -> tuple[Job, ...]:
    """Return each class once, one class of each model type before the second of any.

    A sweep that ends early has then seen as many architectures as it could.
    """
    families: dict[str, list[str]] = {}
    known: set[str] = set()
    mappings = [name for name in dir(modeling_auto) if _is_mapping(name)]
    for mapping in mappings:
        for model_type, found in getattr(modeling_auto, mapping).items():
            names = (found,) if isinstance(found, str) else found
            for name in names:
                if name not in known and model_type in CONFIG_MAPPING_NAMES:
                    known.add(name)
                    families.setdefault(model_type, []).append(name)
    ordered = [sorted(names, key=_rank) for _, names in sorted(families.items())]
    rounds = zip_longest(*([(t, n) for n in ns] for t, ns in zip(sorted(families), ordered)))  # noqa: B905
    pairs = [pair for each in rounds for pair in each if pair is not None]
    return tuple(Job(*pair, index % BESIDE == 0) for index, pair in enumerate(pairs))


def _is_mapping(name: str) -> bool:
    return name.startswith("MODEL_") and name.endswith("MAPPING_NAMES")


def _rank(name: str) -> tuple[int, str]:
    """Generative classes come first: they contain the base model."""
    return (0 if name.endswith(_HEADS_FIRST) else 1, name)
