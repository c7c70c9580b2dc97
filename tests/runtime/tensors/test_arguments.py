"""Calls with the arguments of the module: nested, constant, by name; and one input at a time."""

from __future__ import annotations

import collections
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

import coreai_onnx
from coreai_onnx.errors import InputError, LoadError
from coreai_onnx.model.metadata import ARGUMENTS
from tests.support.tolerances import assert_close


@dataclass
class Batch:
    """A dataclass of tensors."""

    x: torch.Tensor
    mask: torch.Tensor | None = None


class Pair(NamedTuple):
    """A named tuple of tensors."""

    left: torch.Tensor
    right: torch.Tensor


torch.export.register_dataclass(
    Batch, serialized_type_name="tests.runtime.tensors.test_arguments.Batch"
)


class Nested(torch.nn.Module):
    """A module with arguments of every kind."""

    def forward(
        self,
        d: dict[str, Any],
        pair: tuple[torch.Tensor, list[torch.Tensor]],
        n: int,
        flag: bool,
        *,
        batch: Batch,
        scale: torch.Tensor,
        mode: str = "plain",
    ) -> torch.Tensor:
        y = d["a"] * n - pair[0] @ pair[1][0] + 3 * d[7].left - 2 * d[7].right
        y = y + batch.x if flag and mode == "plain" else y
        return y * scale


A, B, C, D, E, F, G = torch.randn(7, 3, 3).unbind()
ARGS = ({"a": A, 7: Pair(B, C)}, (D, [E]), 3, True)
KWARGS = {"batch": Batch(F), "scale": G, "mode": "plain"}
WANTED = Nested()(*ARGS, **KWARGS)


@pytest.fixture(scope="module", params=["program", "file"])
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Return ``run`` of the program, and of a session of its file."""
    program = coreai_onnx.convert(Nested(), ARGS, kwargs=KWARGS)
    if request.param == "program":
        return program.run
    path = tmp_path_factory.mktemp("nested") / "m.onnx"
    program.save(path)
    return coreai_onnx.session(path).run


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [
        (ARGS, KWARGS),
        (ARGS[:2], {"batch": Batch(F), "scale": G}),  # without the constants
        ((), dict(zip(("d", "pair", "n", "flag"), ARGS, strict=True)) | KWARGS),
        ((collections.OrderedDict({7: (B, C), "a": A}), [D, (E,)], np.int64(3)), KWARGS),
        (({"a": A.numpy(), 7: Pair(B, C)}, *ARGS[1:]), KWARGS),
        (({"a": torch.nn.Parameter(A), 7: Pair(B, C)}, *ARGS[1:]), KWARGS),
        ((A, B, C, D, E, F, G), {}),  # the inputs of the model
        ((A, B, C, D, E, F), {"scale": G}),
        (ARGS[:2], {"batch_x": F, "scale": G}),
    ],
)
def test_what_the_module_takes(run: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    assert_close(run(*args, **kwargs)[0], WANTED)


OTHER = "expected {}\n  the model is made for this value: export it again for another one"


@pytest.mark.parametrize(
    ("args", "kwargs", "message"),
    [
        ((*ARGS[:2], 4, True), {}, "argument n is 4, " + OTHER.format(3)),
        ((*ARGS[:2], 3.0, True), {}, "argument n is 3.0, " + OTHER.format(3)),
        ((*ARGS[:2], 3, 1), {}, "argument flag is 1, " + OTHER.format(True)),
        ((*ARGS[:2], A, True), {}, "argument n is a Tensor, " + OTHER.format(3)),
        (ARGS, {"mode": "other"}, "argument mode is 'other', " + OTHER.format("'plain'")),
        (ARGS, {"batch": Batch(F, G)}, "argument batch.mask is a Tensor, " + OTHER.format(None)),
        (
            ({"a": A}, *ARGS[1:]),
            {},
            "argument d is a dict with 'a', expected a mapping with 'a', 7",
        ),
        ((A, *ARGS[1:]), {}, "argument d is a Tensor, expected a mapping with 'a', 7"),
        ((ARGS[0], (D, [])), {}, "argument pair[1] is a list of 0, expected a sequence of 1"),
        (ARGS, {"batch": F}, "argument batch is a Tensor, expected an object with the attribute"),
        (ARGS, {"d": ARGS[0]}, "argument 'd' is given twice, by position and by name"),
        ((*ARGS, G), {}, "5 positional arguments given, 4 expected: (d, pair, n, flag)"),
        (ARGS, {"d_a": A}, "input 'd_a' is given twice"),
        (ARGS, {"other": A}, "unexpected input 'other'"),
        (({"a": A.double(), 7: Pair(B, C)}, *ARGS[1:]), {}, "input 'd_a': dtype is float64"),
        (({"a": A[0], 7: Pair(B, C)}, *ARGS[1:]), {}, "input 'd_a': rank is 1, expected 2"),
        (({"a": None, 7: Pair(B, C)}, *ARGS[1:]), {}, "input 'd_a': NoneType is not a tensor"),
    ],
)
def test_what_differs_is_named(
    run: Any, args: tuple[Any, ...], kwargs: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError) as caught:
        run(*args, **{**KWARGS, **kwargs})
    assert str(caught.value).startswith(message)


class Power(torch.nn.Module):
    """A module with a constant between tensors."""

    def forward(
        self, x: torch.Tensor, n: int, y: torch.Tensor, mode: str = "plain"
    ) -> torch.Tensor:
        return x**n - y if mode == "other" else x


def test_a_constant_between_tensors() -> None:
    program = coreai_onnx.convert(Power(), (A, 2, B, "other"))
    for call in ((A, 2, B, "other"), (A, 2, B), (A, B)):
        assert_close(program.run(*call)[0], Power()(A, 2, B, "other"))
    with pytest.raises(InputError, match="argument n is 3, expected 2"):
        program.run(A, 3, B, "other")
    with pytest.raises(InputError, match="argument mode is 'plain', expected 'other'"):
        program.run(A, 2, B, "plain")


def test_metadata_is_absent_for_tensors_and_is_deterministic() -> None:
    plain = coreai_onnx.convert(torch.nn.Bilinear(3, 3, 3), (A, B))
    assert ARGUMENTS not in plain.model.metadata_props
    one, other = (coreai_onnx.convert(Nested(), ARGS, kwargs=KWARGS) for _ in range(2))
    assert one.model.metadata_props[ARGUMENTS] == other.model.metadata_props[ARGUMENTS]
    found = json.loads(one.model.metadata_props[ARGUMENTS])
    assert found["positional"][1:3] == [["pair", ["pair_0", ["pair_1_0"]]], ["n", {"value": 3}]]


def test_names_of_the_user_are_in_the_tree() -> None:
    names = ["q", "r", "s", "t", "u", "v", "w"]
    exported = torch.export.export(Nested(), ARGS, KWARGS)
    converter = coreai_onnx.TorchConverter().add_exported_program(exported, input_names=names)
    program = converter.to_onnx()
    assert_close(program.run(*ARGS, **KWARGS)[0], WANTED)
    assert_close(program.run(**dict(zip(names, (A, B, C, D, E, F, G), strict=True)))[0], WANTED)


def test_renamed_inputs_are_taken_one_by_one() -> None:
    program = coreai_onnx.convert(Nested(), ARGS, kwargs=KWARGS)
    program.model.graph.inputs[0].name = "renamed"
    assert_close(program.run(A, B, C, D, E, F, G)[0], WANTED)


@pytest.mark.parametrize("text", ["[", "[1]", '{"positional": 3}', '{"keyword": [["x", 3]]}'])
def test_metadata_that_is_broken(tmp_path: Path, text: str) -> None:
    program = coreai_onnx.convert(torch.nn.ReLU(), (A,))
    program.model.metadata_props[ARGUMENTS] = text
    program.save(tmp_path / "m.onnx")
    with pytest.raises(LoadError, match=r"its metadata coreai\.arguments cannot be read"):
        coreai_onnx.OnnxProgram.load(tmp_path / "m.onnx")
