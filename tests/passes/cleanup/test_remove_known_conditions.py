from __future__ import annotations

import numpy as np
import pytest

from coreai_onnx.passes import run_passes
from coreai_onnx.passes.cleanup.remove_unused import remove_dead_code
from coreai_onnx.passes.fuse.masks import remove_known_conditions
from tests.passes.rewriting import fuses, leaves, parse, same_numbers

HEAD = "main (float[b, s] x, bool[{dims}] m) => (bool[{out}] y) <int64 zero = {{{start}}}, int64 one = {{1}}, int64[1] v0 = {{0}}, int64[2] axes = {{0, 2}}> {{"
RAMP = " int64[1] n = Shape <start = 1, end = 2> (x)  t = Squeeze (n, v0)  int64[s] i = Range (zero, t, one)  int64[1, s, 1] c = Unsqueeze (i, axes)"
BODY = RAMP + "  bool[1, s, 1] g = GreaterOrEqual (c, zero)"


def text(dims: str, out: str = "b, s, s", order: str = "g, m", start: int = 0) -> str:
    head = HEAD.format(dims=dims, out=out, start=start)
    return f"{head}{BODY} bool[{out}] a = And ({order})  y = Not (a) }}"


@pytest.mark.parametrize("order", ["g, m", "m, g"])
def test_what_is_true_everywhere_goes(order: str) -> None:
    head = HEAD.format(dims="b, s, s", out="b, s, s", start=0).partition(" <")[0]
    written = text("b, s, s", order=order)
    rng = np.random.default_rng(0)
    feeds = {"x": np.zeros((2, 3), np.float32), "m": rng.random((2, 3, 3)) > 0.5}
    fuses(written, remove_known_conditions, 1, f"{head} {{ y = Not (m) }}", feeds)
    same_numbers(written, remove_known_conditions, feeds)


def test_a_smaller_mask_is_repeated() -> None:
    rng = np.random.default_rng(0)
    feeds = {"x": np.zeros((2, 3), np.float32), "m": rng.random((2, 1, 3)) > 0.5}
    same_numbers(text("b, 1, s"), remove_known_conditions, feeds)


@pytest.mark.parametrize(
    ("written", "reason"),
    [
        (text("b, 1, s", out="b, s, t"), "the other mask may have to be expanded"),
        (text("b, s, s").replace("c, zero", "c, one"), None),
        (text("b, s, s").replace("And", "Or"), None),
    ],
)
def test_others_stay(written: str, reason: str | None) -> None:
    leaves(written, remove_known_conditions, reason)


def test_no_node_is_left_behind_where_a_size_has_no_name() -> None:
    """``b`` can be read from an input, ``t`` cannot: nothing may be made for either."""
    written = text("b, 1, s", out="b, s, t")
    assert run_passes(parse(written), [remove_known_conditions, remove_dead_code]).total == 0


def test_an_output_of_the_graph_keeps_its_name() -> None:
    head = HEAD.format(dims="b, s, s", out="b, s, s", start=0)
    feeds = {"x": np.zeros((1, 2), np.float32), "m": np.eye(2, dtype=bool)[None]}
    written = f"{head}{BODY} bool[b, s, s] k = Not (m)  y = And (g, k) }}"
    same_numbers(written, remove_known_conditions, feeds)
    leaves(
        f"{head}{BODY} y = And (g, m) }}",
        remove_known_conditions,
        "the other mask may have to be expanded",
    )
