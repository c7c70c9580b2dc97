"""Exports that a second attempt saves: they are right at other sizes, and say what was done."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.export import Dim

from coreai_onnx import TorchConverter, compare, convert
from coreai_onnx.errors import DynamicShapesError, ExportError, ExportRetryWarning, InputError
from coreai_onnx.export.capture.attempts import _changes, with_retries
from coreai_onnx.export.torch_export import TorchExport
from coreai_onnx.runtime import session

nn = torch.nn
DEFERRED = "prefer_deferred_runtime_asserts_over_guards=True"
OBLIVIOUS = "backed_size_oblivious=True"


class Strided(nn.Module):
    """Halves a length, and doubles it."""

    def __init__(self) -> None:
        super().__init__()
        self.down, self.up = nn.Conv1d(2, 4, 3, 2, 1), nn.ConvTranspose1d(4, 2, 2, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.up(self.down(x))[..., : x.shape[-1]]


class Patches(nn.Module):
    """Adds position embeddings, interpolated to the size of an image, to its patches."""

    def __init__(self) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, 4, 4, 4)
        self.register_buffer("positions", torch.randn(1, 4, 3, 3))

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        patches = self.patch(image)
        if patches.shape[-2:] != self.positions.shape[-2:]:
            size = patches.shape[-2:]
            return patches + F.interpolate(self.positions, size=size, mode="bilinear")
        return patches + self.positions


class Views(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.view(-1, 2) * 2


class Adds(nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x + y


class Chunks(nn.Module):
    """Has one chunk of the example, and an operator that asks whether there is one."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        count = (x.shape[0] + 7) // 8
        column = torch.arange(count).view(count, 1).float()
        return torch.einsum("ab,cb->ac", column, column + 1)


class ReadsData(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.weight.data + x.data.sum()


@dataclass(frozen=True)
class Case:
    """A model, its example, what is dynamic, what the warning names, other sizes."""

    model: Callable[[], nn.Module]
    args: tuple[Any, ...]
    shapes: Any
    said: Sequence[str]
    others: Sequence[tuple[Any, ...]]


def images(*sizes: tuple[int, int]) -> list[tuple[torch.Tensor]]:
    return [(torch.randn(2, 3, *size),) for size in sizes]


OFFSETS = torch.tensor([0, 2, 4])
CASES = {
    "deferred": Case(
        Strided,
        (torch.randn(1, 2, 9),),
        ({2: "n"},),
        [DEFERRED],
        [(torch.randn(1, 2, n),) for n in (3, 8, 20)],
    ),
    "oblivious": Case(
        lambda: nn.EmbeddingBag(10, 4, mode="sum", include_last_offset=True),
        (torch.tensor([1, 2, 3, 4]), OFFSETS),
        ({0: "n"}, {0: "bags"}),
        [DEFERRED, OBLIVIOUS],
        [(torch.tensor([1, 5, 3]), torch.tensor([0, 3])), (torch.arange(8), OFFSETS * 2)],
    ),
    "a size of 1 in the example": Case(
        Chunks,
        (torch.randn(5),),
        ({0: "n"},),
        [DEFERRED, OBLIVIOUS],
        [(torch.randn(20),), (torch.randn(3),)],
    ),
    "narrowed": Case(
        Patches,
        images((16, 20))[0],
        ({0: "batch", 2: "height", 3: "width"},),
        [OBLIVIOUS, "Dim('height') narrowed to Dim('height', min=4)", "Dim('width', min=4)"],
        images((12, 12), (4, 9), (25, 33)),
    ),
    "equal": Case(
        Adds,
        (torch.randn(3), torch.randn(3)),
        ({0: "a"}, {0: "b"}),
        ["Dim('b') narrowed to Dim('a')"],
        [(torch.randn(8), torch.randn(8))],
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_what_a_second_attempt_saves(name: str) -> None:
    case = CASES[name]
    module = case.model().eval()
    with pytest.warns(ExportRetryWarning, match="torch.export failed as asked") as caught:
        program = convert(module, case.args, dynamic_shapes=case.shapes)
    text = str(caught[0].message)
    assert [part for part in case.said if part not in text] == []
    assert "dynamic_shapes asks for more than the model allows" in text
    assert caught[0].filename == __file__
    for args in (case.args, *case.others):
        compare(program, module, args).assert_close()


def test_dims_without_a_name_are_reported_as_well() -> None:
    hint = torch.export.Dim.DYNAMIC
    asked = TorchExport((torch.ones(2, 2),), {}, ({0: hint, 1: hint},))
    done = replace(asked, dynamic_shapes=({0: hint, 1: torch.export.Dim.AUTO},), deferred=True)
    deferred, narrowed = _changes(asked, done)
    assert DEFERRED in deferred
    assert "narrowed to" in narrowed


def test_what_must_hold_is_checked_in_a_session() -> None:
    with pytest.warns(ExportRetryWarning, match=DEFERRED):
        program = convert(Views(), torch.randn(6), dynamic_shapes=({0: "n"},))
    compare(program, Views(), (torch.randn(10),)).assert_close()
    with pytest.raises(InputError, match=r"expected \(n % 2\) == 0"):
        session(program).run(torch.randn(7))


def test_a_dim_that_the_model_fixes_is_not_tried_again() -> None:
    class Fixed(nn.Module):
        calls = 0

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            Fixed.calls += 1
            return x.view(3, 4)

    with pytest.raises(DynamicShapesError, match="the model fixes it at 3"):
        convert(Fixed(), torch.randn(3, 4), dynamic_shapes=({0: "rows"},))
    assert Fixed.calls == 1


def test_data_is_read_detached() -> None:
    module = ReadsData()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        program = convert(module, torch.randn(4))
    compare(program, module, (torch.randn(4),)).assert_close()


def test_an_attempt_starts_from_the_model_as_it_was() -> None:
    class Keeps(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("last", torch.zeros(2, 2))
            self.seen = torch.zeros(2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.last = self.last + 1
            self.seen = self.seen + 1
            return x.view(-1, 2) + self.last[0] + self.seen

    module = Keeps()
    with pytest.warns(ExportRetryWarning):
        program = convert(module, torch.randn(6), dynamic_shapes=({0: Dim("n")},))
    assert torch.equal(module.last, torch.zeros(2, 2))
    assert torch.equal(module.seen, torch.zeros(2))
    compare(program, module, [(torch.randn(6),), (torch.randn(4),)]).assert_close()


def test_an_export_of_the_user_is_tried_once() -> None:
    calls = []

    def export(model: nn.Module) -> Any:
        calls.append(model)
        return torch.export.export(model, (torch.randn(6),), dynamic_shapes=({0: Dim("n")},))

    with pytest.raises(DynamicShapesError):
        TorchConverter().add_pytorch_module(Views(), export_fn=export)
    assert len(calls) == 1


def test_the_first_error_is_raised_if_nothing_helps() -> None:
    tried: list[TorchExport] = []

    def once(export: TorchExport) -> None:
        tried.append(export)
        cause = torch._dynamo.exc.UserError(
            torch._dynamo.exc.UserErrorType.CONSTRAINT_VIOLATION, f"attempt {len(tried)}"
        )
        raise ExportError(f"attempt {len(tried)}") from cause

    with pytest.raises(ExportError, match="attempt 1"):
        with_retries(TorchExport(), once)
    assert [(t.deferred, t.oblivious, t.strict) for t in tried] == [
        (False, False, False),
        (True, False, False),
        (True, True, False),
        (True, True, True),
    ]
    tried.clear()
    with pytest.raises(ExportError, match="attempt 1"):
        with_retries(TorchExport(strict=True), once)
    assert len(tried) == 3


def test_an_export_with_all_options_is_narrowed_at_once() -> None:
    tried: list[TorchExport] = []

    def once(export: TorchExport) -> None:
        tried.append(export)
        cause = torch._dynamo.exc.UserError(
            torch._dynamo.exc.UserErrorType.CONSTRAINT_VIOLATION,
            "Suggested fixes:\n  n = Dim('n', max=64)",
        )
        if len(tried) == 1:
            raise ExportError("the first attempt") from cause

    export = TorchExport(dynamic_shapes=({0: Dim("n")},), deferred=True, oblivious=True)
    with pytest.warns(ExportRetryWarning, match="narrowed"):
        with_retries(export, once)
    assert [(t.deferred, t.oblivious, t.strict) for t in tried] == [(True, True, False)] * 2
    assert tried[1].dynamic_shapes[0][0].max == 64


@pytest.mark.parametrize("size", [0, 1])
def test_an_example_of_size_0_or_1_does_not_fix_a_named_dim(size: int) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.Softmax(-1))
    with pytest.warns(ExportRetryWarning) as caught:
        program = convert(model, (torch.randn(size, 3, 4),), dynamic_shapes=({0: Dim("batch")},))
    (message,) = [str(w.message) for w in caught]
    assert OBLIVIOUS in message
    assert DEFERRED not in message
    for batch in (0, 1, 5):
        assert compare(program, model, (torch.randn(batch, 3, 4),)).ok


class Share(nn.Module):
    """The first part of the columns, a share computed as a float."""

    def __init__(self, rounded: Callable[[float], int]) -> None:
        super().__init__()
        self.rounded = rounded

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x[:, : self.rounded(x.shape[1] * 0.43)]


def test_a_size_that_int_fixes_at_the_example_is_refused() -> None:
    with pytest.raises(DynamicShapesError, match=r"int\(n \* 0\.25\) as n // 4"):
        convert(Share(int), (torch.randn(2, 10),), dynamic_shapes=({1: Dim("n")},))


@pytest.mark.parametrize("rounded", [math.floor, math.ceil, round])
@pytest.mark.filterwarnings("ignore::coreai_onnx.errors.ExportRetryWarning")
def test_a_rounded_share_is_right_at_every_size(rounded: Callable[[float], int]) -> None:
    model = Share(rounded)
    program = convert(model, (torch.randn(2, 10),), dynamic_shapes=({1: Dim("n", min=5)},))
    for n in (5, 10, 23, 64):
        assert compare(program, model, (torch.randn(2, n),)).ok
