"""onnxruntime's own fused ops, each as a model of one node that does a case's work."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import onnx
import torch
from onnx import helper

from tools.bench.few_bit_weights import rounded_rows, weight_matrix
from tools.bench.runners import ONNX_TYPES

MICROSOFT = "com.microsoft"
Tensors = Sequence[torch.Tensor | None]


def unchanged(output: torch.Tensor) -> torch.Tensor:
    """The layout of a peer whose output is laid out as ours."""
    return output


@dataclass(frozen=True)
class Fused:
    """A model of one of onnxruntime's ops.

    Attributes:
        name: The op.
        model: It alone.
        feeds: Its inputs, the composite's inputs in the layout it wants.
        aliases: Outputs that take the memory of inputs.
        layout: From its first output to the composite's.
    """

    name: str
    model: onnx.ModelProto
    feeds: Mapping[str, torch.Tensor]
    aliases: Mapping[str, str] = field(default_factory=dict)
    layout: Callable[[torch.Tensor], torch.Tensor] = unchanged


def one_node(
    op_type: str,
    feeds: Mapping[str, torch.Tensor | None],
    outputs: Sequence[str] = ("output",),
    *,
    domain: str = "",
    opset: int = 23,
    constants: Mapping[str, torch.Tensor] | None = None,
    **attributes: Any,
) -> onnx.ModelProto:
    """A model of one node; inputs that are None are left out, constants are its last inputs."""
    dtype = ONNX_TYPES[next(t for t in feeds.values() if t is not None).dtype]
    weights = constants or {}
    inputs = [name if tensor is not None else "" for name, tensor in feeds.items()] + [*weights]
    node = helper.make_node(op_type, inputs, list(outputs), domain=domain, **attributes)
    graph = helper.make_graph(
        [node],
        op_type,
        [
            helper.make_tensor_value_info(name, ONNX_TYPES[t.dtype], list(t.shape))
            for name, t in feeds.items()
            if t is not None
        ],
        [helper.make_tensor_value_info(name, dtype, None) for name in outputs if name],
        [_initializer(name, tensor) for name, tensor in weights.items()],
    )
    imports = [helper.make_opsetid("", opset), helper.make_opsetid(MICROSOFT, 1)]
    return helper.make_model(graph, opset_imports=imports, ir_version=10)


def _initializer(name: str, tensor: torch.Tensor) -> onnx.TensorProto:
    data = tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    return helper.make_tensor(name, ONNX_TYPES[tensor.dtype], tensor.shape, data, raw=True)


def fused(
    op_type: str,
    feeds: Mapping[str, torch.Tensor | None],
    outputs: Sequence[str] = ("output",),
    *,
    aliases: Mapping[str, str] | None = None,
    layout: Callable[[torch.Tensor], torch.Tensor] = unchanged,
    domain: str = "",
    constants: Mapping[str, torch.Tensor] | None = None,
    **attributes: Any,
) -> Fused:
    """A model of one node with its inputs."""
    model = one_node(op_type, feeds, outputs, domain=domain, constants=constants, **attributes)
    present = {name: tensor for name, tensor in feeds.items() if tensor is not None}
    return Fused(op_type, model, present, aliases or {}, layout)


def _packed(x: torch.Tensor) -> torch.Tensor:
    """[batch, heads, length, dim] → [batch, length, heads * dim]."""
    return x.transpose(1, 2).flatten(2)


def _unpacked(heads: int) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda x: x.unflatten(2, (heads, -1)).transpose(1, 2)


def attention(inputs: Tensors, attributes: Mapping[str, Any]) -> Fused:
    """ONNX's Attention. Its diagonal begins at the upper left, so one query has none."""
    q, k, v, mask = (*inputs, None)[:4]
    assert q is not None
    causal = attributes.get("is_causal", 0) if q.shape[2] > 1 else 0
    return fused("Attention", {"q": q, "k": k, "v": v, "mask": mask}, is_causal=causal)


def group_query_attention(inputs: Tensors, attributes: Mapping[str, Any]) -> Fused:
    """GroupQueryAttention; a single query finds all but the last key in a cache that it grows."""
    q, k, v = inputs[:3]
    assert q is not None
    assert k is not None
    assert v is not None
    keys = k.shape[2]
    cached = q.shape[2] < keys
    feeds: dict[str, torch.Tensor | None] = {
        "query": _packed(q),
        "key": _packed(k[:, :, keys - q.shape[2] :]),
        "value": _packed(v[:, :, keys - q.shape[2] :]),
        "past_key": k if cached else None,
        "past_value": v if cached else None,
        "seqlens_k": torch.full((q.shape[0],), keys - 1, dtype=torch.int32),
        "total_sequence_length": torch.tensor(keys, dtype=torch.int32),
    }
    window = attributes.get("window_size", 0)
    return fused(
        "GroupQueryAttention",
        feeds,
        ("output", "present_key", "present_value"),
        aliases={"present_key": "past_key", "present_value": "past_value"} if cached else {},
        layout=_unpacked(q.shape[1]),
        domain=MICROSOFT,
        num_heads=q.shape[1],
        kv_num_heads=k.shape[1],
        local_window_size=window if window > 0 else -1,
    )


def multi_head_attention(inputs: Tensors, _attributes: Mapping[str, Any]) -> Fused:
    """MultiHeadAttention, for as many key heads as heads."""
    q, k, v = (x for x in inputs[:3] if x is not None)
    feeds: dict[str, torch.Tensor | None] = {
        "query": _packed(q),
        "key": _packed(k),
        "value": _packed(v),
    }
    heads = q.shape[1]
    return fused(
        "MultiHeadAttention", feeds, layout=_unpacked(heads), domain=MICROSOFT, num_heads=heads
    )


def simplified_layer_norm(inputs: Tensors, attributes: Mapping[str, Any]) -> Fused:
    """SimplifiedLayerNormalization: the RMS norm that onnxruntime's optimizer makes."""
    feeds = dict(zip(("input", "scale"), inputs, strict=True))
    epsilon = attributes.get("eps", 1e-5)
    return fused("SimplifiedLayerNormalization", feeds, axis=-1, epsilon=epsilon, stash_type=1)


def rms_normalization(inputs: Tensors, attributes: Mapping[str, Any]) -> Fused:
    """ONNX's RMSNormalization."""
    feeds = dict(zip(("input", "scale"), inputs, strict=True))
    return fused("RMSNormalization", feeds, axis=-1, epsilon=attributes.get("eps", 1e-5))


def layer_normalization(inputs: Tensors, attributes: Mapping[str, Any]) -> Fused:
    """ONNX's LayerNormalization."""
    feeds = dict(zip(("input", "scale", "bias"), inputs, strict=False))
    return fused("LayerNormalization", feeds, axis=-1, epsilon=attributes.get("eps", 1e-5))


def rotary_embedding(inputs: Tensors, attributes: Mapping[str, Any]) -> Fused:
    """ONNX's RotaryEmbedding, which reads its tables through positions."""
    x, cos, sin = inputs[:3]
    assert x is not None
    positions = torch.arange(x.shape[-2])[None].expand(x.shape[0], -1).contiguous()
    feeds = {"input": x, "cos": cos, "sin": sin, "positions": positions}
    interleaved = attributes.get("interleaved", 0)
    return fused("RotaryEmbedding", feeds, interleaved=interleaved)


def skip_simplified_layer_norm(inputs: Tensors, attributes: Mapping[str, Any]) -> Fused:
    """SkipSimplifiedLayerNormalization, with the sum as an output."""
    feeds = dict(zip(("input", "skip", "gamma"), inputs, strict=True))
    return fused(
        "SkipSimplifiedLayerNormalization",
        feeds,
        ("output", "", "", "sum"),
        domain=MICROSOFT,
        epsilon=attributes.get("eps", 1e-5),
    )


def skip_layer_norm(inputs: Tensors, attributes: Mapping[str, Any]) -> Fused:
    """SkipLayerNormalization, with the sum as an output."""
    feeds = dict(zip(("input", "skip", "gamma", "beta"), inputs, strict=True))
    return fused(
        "SkipLayerNormalization",
        feeds,
        ("output", "", "", "sum"),
        domain=MICROSOFT,
        epsilon=attributes.get("eps", 1e-5),
    )


def tensor_scatter(inputs: Tensors, _attributes: Mapping[str, Any]) -> Fused:
    """ONNX's TensorScatter, into the cache itself."""
    feeds = dict(zip(("cache", "update", "indices"), inputs, strict=True))
    aliases = {"output": "cache"}
    return fused("TensorScatter", feeds, aliases=aliases, opset=24, axis=2)


def linear_attention(inputs: Tensors, _attributes: Mapping[str, Any]) -> Fused:
    """LinearAttention with the gated delta rule; it takes vectors of unit length."""
    q, k, v, g, beta, state = inputs
    assert q is not None
    assert k is not None
    assert v is not None
    assert g is not None
    assert beta is not None
    feeds = {
        "query": _packed(q),
        "key": _packed(k),
        "value": _packed(v),
        "past_state": state,
        "decay": g.transpose(1, 2).contiguous(),
        "beta": beta.transpose(1, 2).contiguous(),
    }
    return fused(
        "LinearAttention",
        feeds,
        ("output", "present_state"),
        layout=lambda x: x.unflatten(2, (v.shape[1], -1)),
        domain=MICROSOFT,
        q_num_heads=q.shape[1],
        kv_num_heads=v.shape[1],
        update_rule="gated_delta",
    )


def matmul(inputs: Tensors, _attributes: Mapping[str, Any]) -> Fused:
    """MatMul with a constant matrix, given as ``[N, K]``."""
    rows, weight = inputs[:2]
    assert weight is not None
    return fused("MatMul", {"rows": rows}, constants={"weight": weight.T.contiguous()})


def matmul_nbits(inputs: Tensors, attributes: Mapping[str, Any]) -> Fused:
    """MatMulNBits, with activations rounded to 8 bits (``accuracy_level`` 4) if the case's are."""
    rows, codes, scales = inputs[:3]
    assert codes is not None
    assert scales is not None
    size = attributes["group_size"]
    return fused(
        "MatMulNBits",
        {"rows": rows},
        domain=MICROSOFT,
        constants={"codes": codes, "scales": scales.float()},
        K=codes.shape[1] * size,
        N=len(codes),
        bits=attributes["bits"],
        block_size=size,
        accuracy_level=4 if attributes["activation_bits"] else 0,
    )


def dynamic_quantize_matmul(inputs: Tensors, attributes: Mapping[str, Any]) -> Fused:
    """DynamicQuantizeMatMul: 8-bit columns with a scale each, all rows rounded with one scale."""
    codes, scales = rounded_rows(weight_matrix(inputs, attributes))
    constants = {"codes": codes.T.contiguous(), "scales": scales}
    feeds = {"rows": inputs[0]}
    return fused("DynamicQuantizeMatMul", feeds, domain=MICROSOFT, constants=constants)
