"""Eager torch in float64 beside itself."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch._higher_order_ops import scan, while_loop

from coreai_onnx.debugging.reference.widened import Widened, is_floating
from tests.support.tolerances import assert_close

Function = Callable[[torch.Tensor], torch.Tensor]


def scaled_in_place(x: torch.Tensor) -> torch.Tensor:
    y = x.sin()
    y[0].mul_(3)
    y.view(-1)[1:3] += x.reshape(-1)[:2]
    return y.cumsum(0)


def choices(x: torch.Tensor) -> torch.Tensor:
    best = x.softmax(-1).topk(2).indices
    kept = torch.where(x > 0, x, x.exp())
    return kept.gather(-1, best) / torch.tensor([3.0]).to(x.dtype)


def rounded_between(x: torch.Tensor) -> torch.Tensor:
    return x.to(torch.float16).float().to(x.dtype).tanh() + torch.full_like(x, 0.1)


def written_to_an_output(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    torch.mul(x, 1 / 3, out=out)
    return out


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("f", [scaled_in_place, choices, rounded_between, written_to_an_output])
def test_the_ideal_is_that_of_float64_and_torch_is_as_without(
    f: Function, dtype: torch.dtype
) -> None:
    x = torch.randn(4, 4).to(dtype)
    with torch.no_grad():
        alone = f(x.clone())
        mode = Widened()
        with mode:
            own = f(x.clone())
    assert torch.equal(own, alone)
    ideal = mode.ideal(own)
    wanted = x.double().tanh() + 0.1 if f is rounded_between else f(x.double())
    if f in (choices, rounded_between):  # a constant keeps the digits that it has in its dtype
        assert (ideal - wanted).abs().max() < 0.1
        assert (ideal - wanted).abs().max() <= (own - wanted).abs().max() + 1e-3
    else:
        assert_close(ideal, wanted)
    assert ideal.dtype == torch.float64


def test_integers_are_torchs_own_and_written_once() -> None:
    count = torch.zeros(2, dtype=torch.int64)
    mode = Widened()
    with mode:
        count.add_(1)
        count[torch.randn(2).argmax()] += 1
    assert int(count.sum()) == 3


def test_random_numbers_are_exact_and_named() -> None:
    mode, x = Widened(), torch.randn(3)
    with mode:
        y = x + torch.rand_like(x)
        x.uniform_()
    assert list(mode.random) == ["aten.rand_like.default", "aten.uniform_.default"]
    assert (mode.ideal(y) - y).abs().max() < 1e-6
    assert torch.equal(mode.ideal(x), x.double())


class NoFloat64(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return only_float32(x) + 1 / 3


@torch.library.custom_op("coreai_onnx_tests::only_float32", mutates_args=())
def only_float32(x: torch.Tensor) -> torch.Tensor:
    """Return twice the input."""
    if x.dtype != torch.float32:
        raise TypeError("float32 only")
    return x * 2


def test_an_operator_without_float64_is_exact() -> None:
    mode, x = Widened(), torch.randn(3)
    with torch.no_grad(), mode:
        y = NoFloat64()(x)
    assert_close(mode.ideal(y), (x * 2).double() + 1 / 3)


def test_a_copy_keeps_the_result_of_its_time() -> None:
    mode, x = Widened(), torch.rand(3)
    with mode:
        y = x / 3
    copied = mode.copy(y)
    with mode:
        y.zero_()
    assert_close(mode.ideal(copied), x.double() / 3)
    assert not mode.ideal(y).any()


def test_complex_numbers() -> None:
    mode, z = Widened(), torch.randn(3, dtype=torch.complex64)
    with mode:
        y = z.exp().conj()
    assert_close(mode.ideal(y).resolve_conj(), z.to(torch.complex128).exp().conj().resolve_conj())
    assert is_floating(y)
    assert not is_floating(torch.ones(1, dtype=torch.bool))


class Loops(torch.nn.Module):
    """A loop, a branch and a scan."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return [3, 4] for [3, 4]."""

        def body(i: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return i + 1, (y * 1.1).sin()

        _, y = while_loop(lambda i, _: i < 3, body, (torch.tensor(0), x))
        chosen = torch.cond(y.sum() > 0, torch.cos, torch.exp, (y,))
        total, outputs = scan(lambda c, v: ((c + v).tanh(), c * v), chosen[0], chosen)
        return outputs + total


def test_control_flow_is_widened_inside() -> None:
    x = torch.rand(3, 4)
    program = torch.export.export(Loops(), (x,)).module()
    with Widened() as widened:
        own = program(x)
    with Widened() as reference:  # the same steps, without operators of control flow
        y = x.clone()
        for _ in range(3):
            y = (y * 1.1).sin()
        y = y.cos()
        carried, rows = y[0], []
        for row in y:
            rows.append(carried * row)
            carried = (carried + row).tanh()
        plain = torch.stack(rows) + carried
    assert_close(own, plain)
    ideal = widened.ideal(own)
    assert ideal.dtype == torch.float64
    assert_close(ideal, reference.ideal(plain))
    assert not torch.equal(ideal, own.double())
