"""Transformers that read a whole text at once."""

from __future__ import annotations

from typing import Any

import torch
import transformers

from tests.models.architecture import (
    HEADS,
    LAYERS,
    VOCABULARY,
    WIDTH,
    Architecture,
    ids_and_mask,
    token_dims,
)

_SHAPE: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": WIDTH,
    "intermediate_size": 96,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
}


def _bert() -> torch.nn.Module:
    return transformers.BertModel(transformers.BertConfig(**_SHAPE))


def _roberta() -> torch.nn.Module:
    config = transformers.RobertaConfig(**_SHAPE, max_position_embeddings=80, pad_token_id=1)
    return transformers.RobertaModel(config)


def _distilbert() -> torch.nn.Module:
    config = transformers.DistilBertConfig(
        vocab_size=VOCABULARY, dim=WIDTH, hidden_dim=96, n_layers=LAYERS, n_heads=HEADS
    )
    return transformers.DistilBertForMaskedLM(config)


def _electra() -> torch.nn.Module:
    config = transformers.ElectraConfig(**_SHAPE, embedding_size=32)
    return transformers.ElectraForPreTraining(config)


def _mpnet() -> torch.nn.Module:
    return transformers.MPNetModel(transformers.MPNetConfig(**_SHAPE, max_position_embeddings=80))


def _deberta() -> torch.nn.Module:
    config = transformers.DebertaV2Config(
        **_SHAPE,
        relative_attention=True,
        position_buckets=8,
        max_position_embeddings=80,
        norm_rel_ebd="layer_norm",
        share_att_key=True,
        pos_att_type=["p2c", "c2p"],
        conv_kernel_size=3,
        conv_act="gelu",
        position_biased_input=False,
    )
    return transformers.DebertaV2Model(config)


def _modernbert() -> torch.nn.Module:
    config = transformers.ModernBertConfig(
        **{**_SHAPE, "num_hidden_layers": 3},
        global_attn_every_n_layers=2,
        local_attention=8,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        cls_token_id=1,
        sep_token_id=2,
    )
    return transformers.ModernBertModel(config)


_BOTH = token_dims("input_ids", "attention_mask")

ENCODERS = (
    Architecture("bert", _bert, ids_and_mask, _BOTH),
    Architecture("roberta", _roberta, ids_and_mask, _BOTH),
    Architecture("distilbert", _distilbert, ids_and_mask, _BOTH),
    Architecture("electra", _electra, ids_and_mask, _BOTH),
    Architecture("mpnet", _mpnet, ids_and_mask, _BOTH),
    Architecture("deberta_v2", _deberta, ids_and_mask, _BOTH),
    Architecture("modernbert", _modernbert, ids_and_mask, _BOTH),
)
