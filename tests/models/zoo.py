"""All architectures, in the order of the table in docs/models.md."""

from __future__ import annotations

from tests.models.architecture import Architecture
from tests.models.audio import AUDIO
from tests.models.decoders import DECODERS
from tests.models.encoders import ENCODERS
from tests.models.mixtures import MIXTURES, STATEFUL
from tests.models.sequence_to_sequence import SEQUENCE_TO_SEQUENCE
from tests.models.vision import VISION

ARCHITECTURES = (
    *ENCODERS,
    *DECODERS,
    *MIXTURES,
    *STATEFUL,
    *SEQUENCE_TO_SEQUENCE,
    *VISION,
    *AUDIO,
)
"""Every architecture that conversion is held to."""


def named(name: str) -> Architecture:
    """Return the architecture of this name."""
    return next(a for a in ARCHITECTURES if a.name == name)
