"""Models of pictures or sound whose parts run in sessions, with transformers' own generation.

The class of transformers does what is between the parts: it replaces the embeddings of placeholders
by features, numbers positions, tells pictures from text in masks. Its layers have no memory (they
are on torch's ``meta`` device); those that compute are replaced by sessions.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, GenerationConfig
from transformers.modeling_outputs import BaseModelOutputWithPast

from coreai_onnx.errors import GenerationError, failures_as
from coreai_onnx.huggingface.generation.configuration import (
    CONFIG,
    Configuration,
    generation_settings,
)
from coreai_onnx.huggingface.generation.decoding import Decoding
from coreai_onnx.huggingface.generation.encoded_texts import EncodedTextSessions
from coreai_onnx.huggingface.generation.media_extensions import replace_extension
from coreai_onnx.huggingface.generation.media_layers import InSession, Pending, run_session
from coreai_onnx.huggingface.generation.media_prompts import Media
from coreai_onnx.huggingface.generation.session_model import (
    SessionModel,
    WithoutWeights,
    model_class,
    without_weights,
)
from coreai_onnx.huggingface.media.decoder import EMBEDS, TYPES
from coreai_onnx.huggingface.media.encoders import (
    DEEPSTACK,
    MASK,
    NEWLINE,
    RENAMED,
    arranges_later,
    method_name,
    projector_of,
)
from coreai_onnx.huggingface.media.extensions import LAYER
from coreai_onnx.huggingface.media.prefixes import PrefixedModel, has_prefix
from coreai_onnx.huggingface.transformers_names import CACHE, ModelOutput
from coreai_onnx.model.files.new_files import file_fault
from coreai_onnx.model.files.program_files import EMBEDDING_FILE, MEDIA_FILES
from coreai_onnx.runtime.sessions.session import Session

_NO_TYPE = -1
"""The type of tokens without one, that of no picture and of no prefix."""


def open_media(
    folder: Path,
    decoder: Session,
    settings: Configuration,
    how: Mapping[str, Any],
    encoder: Session | None = None,
) -> Media:
    """Open the other files of a folder whose decoder is open.

    Args:
        folder: The folder.
        decoder: The session of the decoder.
        settings: The settings of the folder.
        how: The arguments of the sessions.
        encoder: The session of an encoder that reads the text and its pictures.
    """
    files = {"embeddings": EMBEDDING_FILE, **MEDIA_FILES}
    sessions = {"decoder": decoder}
    for name, file in files.items():
        if not file_fault(folder / file):
            sessions[name] = Session(folder / file, **how)
    rules = generation_settings(settings.rules, settings.stop_ids, settings.pad_id)
    model: Any
    if encoder is None:
        model = media_model(folder, sessions, rules)
    else:
        config = _config(folder)
        text = config.get_text_config()
        present = {name: x for name, x in rules.items() if x is not None}
        rules = {"decoder_start_token_id": text.decoder_start_token_id}
        rules |= {"eos_token_id": text.eos_token_id, "pad_token_id": text.pad_token_id}
        model = EncodedTextSessions(
            decoder, encoder, sessions["embeddings"], sessions.get("image"),
            config.image_token_id, rules | present,
        )  # fmt: skip
    return Media(model, folder, frozenset(MEDIA_FILES.keys() & sessions.keys()))


def pictures_media(
    folder: Path, decoder: Session, encoder: Session, settings: Configuration
) -> Media | None:
    """Return a decoder whose encoder reads pictures, or None if it reads something else.

    Args:
        folder: The folder.
        decoder: The session of the decoder.
        encoder: The session of the encoder.
        settings: The settings of the folder.
    """
    if encoder.inputs[0].name != "pixel_values":
        return None
    start = {"decoder_start_token_id": settings.start_id}
    model = SessionModel(
        decoder,
        generation_settings(settings.rules, settings.stop_ids, settings.pad_id) | start,
        encoder,
    )
    return Media(model, folder, frozenset({"image"}))


def media_model(folder: Path, sessions: Mapping[str, Session], settings: Mapping[str, Any]) -> Any:
    """Return a model of transformers that runs in sessions.

    Args:
        folder: The folder with the configuration.
        sessions: The sessions: ``embeddings``, ``decoder``, and encoders by modality.
        settings: The settings of ``generation_config``.

    Raises:
        GenerationError: If the configuration cannot be read.
        ModelSourceError: If transformers does not have its class.
    """
    config = _config(folder)
    attributes = {"session": sessions["decoder"]}
    model = without_weights(model_class(config, folder / CONFIG), config, attributes, _Generates)
    base = model.base_model
    # Its device is that of tensors between the parts, and not that of layers without memory.
    base.__class__ = type(type(base).__name__, (WithoutWeights, type(base)), {})
    model.generation_config = GenerationConfig(**settings)
    adapted = PrefixedModel(model) if has_prefix(model) else model
    decoder = _DecoderInSession(model, adapted.get_decoder(), sessions["decoder"])
    # Before the decoder is replaced, in which transformers looks for them.
    first, head = model.get_input_embeddings(), model.get_output_embeddings()
    is_extended = hasattr(base, LAYER)
    if is_extended:
        replace_extension(base, decoder, sessions)
    else:
        _replace(model, adapted.get_decoder(), decoder)
    _replace(model, head, torch.nn.Identity())
    embed = sessions["embeddings"]
    layer = InSession(lambda ids: run_session(embed, input_ids=ids)[0])
    _replace(model, first, layer)
    if adapted is not model:
        # Positions have embeddings; the features of pictures before a text have none.
        base.embeddings = InSession(lambda **given: run_session(embed, **given)[0])
    for owner in (model, base):
        # Attributes of the objects, because the layer that held them is replaced.
        vars(owner)["get_input_embeddings"] = lambda: layer
    # Some models look them up in the decoder.
    vars(decoder)["get_input_embeddings"] = lambda: layer
    for modality in () if is_extended else sessions.keys() - {"embeddings", "decoder"}:
        _replace_encoder(model, adapted.get_encoder(modality), modality, sessions[modality])
    model.register_forward_pre_hook(decoder.begin, with_kwargs=True)
    model.register_forward_hook(decoder.end)
    return model


def _config(folder: Path) -> Any:
    with failures_as(GenerationError, f"cannot read the configuration of {folder}"):
        return AutoConfig.from_pretrained(folder, local_files_only=True)


@dataclass
class _Features(ModelOutput):
    """The result of an encoder.

    Attributes:
        pooler_output: The features.
        deepstack_features: Those of inner layers.
    """

    pooler_output: Any = None
    deepstack_features: Any = None


class _Generates(WithoutWeights):
    """``generate`` with the cache of a session."""

    session: Session

    def generate(self, *args: Any, **options: Any) -> Any:
        """Generate, as ``generate`` of transformers does."""
        options.setdefault(CACHE, Decoding(self.session))
        return super().generate(*args, **options)  # type: ignore[misc]  # transformers' class


class _DecoderInSession(torch.nn.Module):
    """The decoder with its head, in a session."""

    def __init__(self, model: Any, decoder: Any, session: Session) -> None:
        super().__init__()
        # Some models look them up; the layers have no memory.
        self.config, self.layer = decoder.config, getattr(decoder, "layer", None)
        self._logits = torch.zeros(0)
        self._call: dict[str, Any] = {}
        self._infos = {info.name: info for info in (*session.inputs, *session.optional_inputs)}
        self._parameters_of_model = list(inspect.signature(type(model).forward).parameters)[1:]

    def begin(self, _: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Keep the arguments of a call of the model."""
        self._call = dict(zip(self._parameters_of_model, args, strict=False)) | kwargs

    def end(self, _: torch.nn.Module, args: tuple[Any, ...], output: Any) -> Any:
        """Return the result of the model with the logits of the session."""
        del args
        # The file has computed what transformers does after the head, such as a limit.
        output.logits = self._logits
        return output

    def forward(
        self,
        inputs_embeds: torch.Tensor,
        position_ids: torch.Tensor | None = None,
        past_key_values: Decoding | None = None,
        visual_pos_masks: torch.Tensor | None = None,
        deepstack_visual_embeds: list[torch.Tensor] | None = None,
        cache: Decoding | None = None,
        **unused: Any,
    ) -> BaseModelOutputWithPast:
        """Read embeddings, and return the logits."""
        del unused
        cache = past_key_values if cache is None else cache  # the name from 5.24 on
        assert cache is not None
        places = inputs_embeds.shape[:2]
        feeds: dict[str, Any] = {EMBEDS: inputs_embeds}
        if position_ids is not None:
            feeds["position_ids"] = _positions(position_ids, self._infos, places)
        ids, mask, types = (self._call.get(n) for n in ("input_ids", "attention_mask", TYPES))
        if TYPES in self._infos:
            types = torch.full(places, _NO_TYPE) if types is None else types
            if ids is not None and ids.shape[1] < places[1]:
                # Features that precede the tokens are those of pictures.
                types[:, : -ids.shape[1]] = 1
            feeds[TYPES] = types
        if DEEPSTACK in self._infos:
            feeds[DEEPSTACK] = _deepstack(
                inputs_embeds, int(self._infos[DEEPSTACK].dims[0] or 0), visual_pos_masks,
                deepstack_visual_embeds,
            )  # fmt: skip
        cache.fix(feeds)
        # The tokens of a placeholder count, and their embeddings are given.
        tokens = torch.zeros(places, dtype=torch.int64)
        if mask is not None:
            # transformers passes the mask of the text alone.
            before = cache.ids.shape[-1] + places[1] - mask.shape[1]
            mask = torch.nn.functional.pad(mask, (before, 0), value=1)
        cache.extend(tokens, mask)
        keep = self._call.get("logits_to_keep") or 0
        self._logits = cache.read(keep)
        return BaseModelOutputWithPast(last_hidden_state=self._logits, **{CACHE: cache})


def _positions(positions: torch.Tensor, infos: Mapping[str, Any], places: Any) -> torch.Tensor:
    """Return positions with as many rows as the file takes."""
    positions = positions.expand(*positions.shape[:-2], *places)
    if len(infos["position_ids"].dims) == 3:
        # A row of the text may precede those of frames, rows and columns.
        return positions[-3:] if positions.ndim == 3 else positions.expand(3, -1, -1)
    return positions


def _deepstack(
    embeds: torch.Tensor, layers: int, mask: torch.Tensor | None, features: Any
) -> torch.Tensor:
    """Return the features of inner layers at the places of pictures, and zeros elsewhere."""
    result = embeds.new_zeros(layers, *embeds.shape)
    if mask is not None and features is not None:
        result[:, mask] = torch.stack(list(features))
    return result


def _replace_encoder(model: Any, encoder: Any, modality: str, session: Session) -> None:
    """Let a session compute the features of a modality."""
    base = model.base_model
    renamed = RENAMED.get(model.config.model_type, {})
    originals = {new: old for old, new in renamed.items()}
    names = [originals.get(info.name, info.name) for info in session.inputs]
    if arranges_later(base, modality):
        results: list[torch.Tensor] = []

        def encode(*args: Any, **kwargs: Any) -> Pending:
            # The first argument is that of the first input.
            feeds = dict(zip(names, args, strict=False)) | kwargs
            if MASK in names and feeds.get(MASK) is None:
                # transformers makes no mask where all frames attend to all.
                length = int(session.inputs[names.index(MASK)].dims[-1] or 0)
                feeds[MASK] = torch.ones(len(feeds[names[0]]), 1, length, length)
            results[:] = run_session(session, renamed, **feeds)
            if len(results) > 1:
                setattr(base, NEWLINE, torch.nn.Parameter(results[1], requires_grad=False))
            return Pending()

        stand_in: Any = InSession(encode)
        stand_in.config, stand_in.device = encoder.config, torch.device("cpu")
        lengths = "_get_feat_extract_output_lengths"
        if hasattr(encoder, lengths):
            setattr(stand_in, lengths, getattr(encoder, lengths))
        _replace(model, encoder, stand_in)
        setattr(base, str(projector_of(base)), InSession(lambda _: results[0]))
        return
    method = getattr(base, method_name(modality))
    parameters = list(inspect.signature(method).parameters)

    # ``generate`` reads from the signature which inputs to pass.
    @functools.wraps(method)
    def features(*args: Any, **kwargs: Any) -> _Features:
        feeds = dict(zip(parameters, args, strict=False)) | kwargs
        output, *inner = run_session(session, renamed, **feeds)
        # Features of two axes are those of a list in transformers.
        return _Features(
            pooler_output=[output] if output.ndim == 2 else output,
            deepstack_features=[[layer] for layer in inner[0]] if inner else None,
        )

    setattr(base, method_name(modality), features)


def _replace(model: torch.nn.Module, old: torch.nn.Module, new: torch.nn.Module) -> None:
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if child is old:
                setattr(parent, name, new)
