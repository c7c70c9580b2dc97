"""Structural changes of ONNX models: of fields, types, sizes, names, metadata and data files.

Changes are made to messages, so that files stay ones that protobuf reads, and what reads models
sees the damage. Everything follows from the random generator that is passed.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

import onnx
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

NUMBERS = (
    0,
    1,
    -1,
    2,
    3,
    7,
    16,
    21,
    26,
    99,
    1 << 20,
    (1 << 31) - 1,
    1 << 31,
    (1 << 63) - 1,
    -(1 << 63),
)
TEXTS = ("", "x", "y", "\x1b[2J\x1b]0;owned\x07", "a" * 3000, "../secret", "/etc/passwd", "nul\0", "é→",
         "\u202e", "location", "main", "batch", "%s{0}", "\n\n  at line 1", "2*seq + 1")  # fmt: skip
OPS = ("Add", "Slice", "Reshape", "Where", "Concat", "Constant", "If", "Loop", "Scan", "Split", "Cast",
       "Gather", "Unsqueeze", "Squeeze", "Transpose", "ReduceSum", "Clip", "Expand", "Shape", "Identity",
       "ConstantOfShape", "Range", "Resize", "SequenceConstruct", "Optional", "TopK", "Gemm", "MatMul",
       "Conv", "BatchNormalization", "Softmax", "Dropout", "Mul", "Sub", "Div", "Pow", "Sqrt", "Tile",
       "Attention", "LayerNormalization", "RMSNormalization", "RotaryEmbedding", "DequantizeLinear",
       "QuantizeLinear", "Not", "Equal", "CastLike", "Pad", "rms_norm", "Block", "square", "geglu")  # fmt: skip
INTEGERS = {
    FieldDescriptor.TYPE_INT32: 32,
    FieldDescriptor.TYPE_INT64: 64,
    FieldDescriptor.TYPE_UINT64: 64,
    FieldDescriptor.TYPE_ENUM: 32,
}


def mutated(model: onnx.ModelProto, rng: random.Random) -> bytes:
    """Return a file of the model with one to six changes."""
    changed = onnx.ModelProto()
    changed.CopyFrom(model)
    for _ in range(rng.choice((1, 1, 1, 2, 3, 6))):
        change = rng.choices((_field, _special), (3, 1))[0]
        try:
            change(changed, rng)
        except (ValueError, TypeError, OverflowError):
            continue  # a number that the field cannot take
    content = changed.SerializeToString()
    if rng.random() < 0.03:
        content = _spoiled(content, rng)
    return content


def _spoiled(content: bytes, rng: random.Random) -> bytes:
    """Make a name invalid UTF-8, or cut the file, or change bytes."""
    kind = rng.randrange(3)
    if kind == 0:
        return content.replace(rng.choice((b"x", b"y", b"Add", b"weight")), b"\xff")
    if kind == 1:
        return content[: rng.randrange(len(content) + 1)]
    data = bytearray(content)
    for _ in range(3):
        data[rng.randrange(len(data))] = rng.randrange(256)
    return bytes(data)


def _is_repeated(value: Any) -> bool:
    return hasattr(value, "extend")


def _messages(root: Message) -> list[Message]:
    found, waiting = [], [root]
    while waiting:
        message = waiting.pop()
        found.append(message)
        for field, value in message.ListFields():
            if field.type == FieldDescriptor.TYPE_MESSAGE:
                waiting.extend((value,) if isinstance(value, Message) else value)
    return found


def _field(model: onnx.ModelProto, rng: random.Random) -> None:
    """Change a field of a message somewhere in the model."""
    messages = _messages(model)
    message = rng.choice(messages)
    present = [field for field, _ in message.ListFields()]
    fields = present if present and rng.random() < 0.8 else list(message.DESCRIPTOR.fields)
    field = rng.choice(fields)
    value = getattr(message, field.name)
    if rng.random() < 0.15:
        message.ClearField(field.name)
    elif field.type == FieldDescriptor.TYPE_MESSAGE:
        _nested(message, field, value, messages, rng)
    elif _is_repeated(value):
        _repeated(value, field, model, rng)
    else:
        setattr(message, field.name, _scalar(field, model, rng))


def _nested(
    message: Message,
    field: FieldDescriptor,
    value: Any,
    messages: list[Message],
    rng: random.Random,
) -> None:
    others = [one for one in messages if one.DESCRIPTOR is field.message_type]
    if not _is_repeated(value):
        if others and rng.random() < 0.7:
            other = type(others[0])()
            other.CopyFrom(rng.choice(others))
            value.CopyFrom(other)
        else:
            value.SetInParent()
        return
    kind = rng.randrange(4)
    if kind == 0 and len(value):
        del value[rng.randrange(len(value))]
    elif kind == 1 and len(value) > 1:
        first, second = rng.sample(range(len(value)), 2)
        copy = type(value[0])()
        copy.CopyFrom(value[first])
        value[first].CopyFrom(value[second])
        value[second].CopyFrom(copy)
    elif kind == 2 and others:
        copy = type(others[0])()
        copy.CopyFrom(rng.choice(others))
        value.add().CopyFrom(copy)
    else:
        value.add()


def _repeated(
    value: Any, field: FieldDescriptor, model: onnx.ModelProto, rng: random.Random
) -> None:
    kind = rng.randrange(4)
    if kind == 0 and len(value):
        del value[rng.randrange(len(value))]
    elif kind == 1 and len(value):
        value[rng.randrange(len(value))] = _scalar(field, model, rng)
    elif kind == 2 and len(value):
        value.append(rng.choice(list(value)))
    else:
        value.append(_scalar(field, model, rng))


def _scalar(field: FieldDescriptor, model: onnx.ModelProto, rng: random.Random) -> Any:
    if field.type in INTEGERS:
        bits = INTEGERS[field.type]
        return rng.choice([n for n in NUMBERS if -(1 << (bits - 1)) <= n < 1 << (bits - 1)])
    if field.type == FieldDescriptor.TYPE_STRING:
        if field.name == "op_type" and rng.random() < 0.8:
            return rng.choice(OPS)
        return rng.choice((*TEXTS, *_names(model)))
    if field.type == FieldDescriptor.TYPE_BYTES:
        return rng.choice((b"", b"\xff\xfe", bytes(4), bytes(64), b"NOTSET", b"x" * 7))
    return rng.choice((0.0, -1.0, 1e-5, float("nan"), float("inf"), 1e38))


def _names(model: onnx.ModelProto) -> list[str]:
    return [name for node in model.graph.node for name in (*node.input, *node.output)] or ["x"]


# ── what files of this package hold, and what does damage ────────────────────────────────────


def _special(model: onnx.ModelProto, rng: random.Random) -> None:
    rng.choice(SPECIALS)(model, rng)


def _metadata(model: onnx.ModelProto, rng: random.Random) -> None:
    key = rng.choice(
        ("coreai.states", "coreai.range_constraints", "coreai.relations", "coreai.debug_info",
         "coreai.entrypoint", "coreai.entrypoints", "coreai.target", "coreai.minimum_onnxruntime")
    )  # fmt: skip
    entry = next((e for e in model.metadata_props if e.key == key), None)
    if entry is None:
        entry = model.metadata_props.add(key=key)
    entry.value = rng.choice(
        (
            "",
            "{",
            "[" * 100_000,
            '{"a":' * 5000,
            json.dumps(_json(rng, 3)),
            json.dumps({rng.choice(("batch", "n", "seq")): {"min": _json(rng, 1), "max": _json(rng, 1)}}),
            json.dumps([{"holds": rng.choice(("(" * 50_000, "n" * 100_000, "n == 0", "n // 0 > 1", "-" * 2000 + "n"))}]),
            json.dumps([{"input": "x", "output": "y"}]),
            json.dumps({"classes": _json(rng, 2), "odd": _json(rng, 2), "sources": _json(rng, 2), "nodes": _json(rng, 2)}),
            rng.choice(TEXTS),
        )
    )  # fmt: skip


def _json(rng: random.Random, depth: int) -> Any:
    kind = rng.randrange(8 if depth else 5)
    if kind < 5:
        return rng.choice((None, True, 0, -1, 1e400, 1 << 70, "x", "y", "0*3", "count", "\x1b[2J"))
    if kind == 5:
        return {
            rng.choice(("input", "output", "min", "max", "holds", "n")): _json(rng, depth - 1)
            for _ in range(2)
        }
    return [_json(rng, depth - 1) for _ in range(rng.randrange(4))]


def _external(model: onnx.ModelProto, rng: random.Random) -> None:
    tensors = [one for one in _messages(model) if isinstance(one, onnx.TensorProto)]
    if not tensors:
        return
    tensor = rng.choice(tensors)
    tensor.data_location = onnx.TensorProto.EXTERNAL
    if rng.random() < 0.5:
        tensor.ClearField("raw_data")
    del tensor.external_data[:]
    for key, values in (
        (
            "location",
            ("data", "data", "data", "../secret", "/etc/passwd", "", "d", "*/_ORT_MEM_ADDR_/*"),
        ),
        ("offset", ("0", "64", "-1", "9" * 20, "x", "4095")),
        ("length", ("0", "256", "-1", "9" * 19, "1.5")),
    ):
        if key == "location" or rng.random() < 0.5:
            tensor.external_data.add(key=key, value=rng.choice(values))


def _calls(model: onnx.ModelProto, rng: random.Random) -> None:
    """Let a node somewhere call a function, itself perhaps in it, with any number of inputs."""
    nodes = [one for one in _messages(model) if isinstance(one, onnx.NodeProto)]
    if not nodes or not model.functions:
        return
    node, function = rng.choice(nodes), rng.choice(model.functions)
    node.domain, node.op_type = function.domain, function.name
    if rng.random() < 0.5:
        del node.input[rng.randrange(len(node.input) + 1) :]


def _opset(model: onnx.ModelProto, rng: random.Random) -> None:
    owner = rng.choice((model, *model.functions))
    if owner.opset_import:
        rng.choice(owner.opset_import).version = rng.choice(
            (1, 5, 6, 7, 8, 9, 10, 11, 12, 13, 18, 25, 26)
        )


def _no_inputs(model: onnx.ModelProto, rng: random.Random) -> None:
    nodes = [one for one in _messages(model) if isinstance(one, onnx.NodeProto)]
    if nodes:
        node = rng.choice(nodes)
        for index in range(len(node.input)):
            if rng.random() < 0.6:
                node.input[index] = ""


def _new_node(model: onnx.ModelProto, rng: random.Random) -> None:
    """Put an operator of any kind between two values."""
    names = _names(model)
    node = onnx.NodeProto(op_type=rng.choice(OPS), name=rng.choice(("", "n", "\x1b[1m")))
    node.input.extend(rng.choices(names, k=rng.randrange(4)))
    node.output.append(f"made_{rng.randrange(1000)}")
    if rng.random() < 0.3:
        node.domain = rng.choice(("ai.coreai", "com.microsoft", "ai.onnx", "ai.coreai.user"))
    model.graph.node.insert(rng.randrange(len(model.graph.node) + 1), node)
    for reader in model.graph.node:
        for index in range(len(reader.input)):
            if rng.random() < 0.2:
                reader.input[index] = node.output[0]


SPECIALS: tuple[Callable[[onnx.ModelProto, random.Random], None], ...] = (
    _metadata, _metadata, _external, _calls, _opset, _no_inputs, _new_node, _new_node,
)  # fmt: skip
