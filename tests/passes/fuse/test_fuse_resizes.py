from __future__ import annotations

import numpy as np
import pytest

from coreai_onnx.passes.fuse.fuse_resizes import fuse_resizes
from tests.passes.rewriting import leaves, parse, run, run_passes
from tests.support.tolerances import assert_close

TEXT = """main (int64[2] size, float[1, 16, 5, 3] z) => (float[1, {c}, s, t] y) <float[1, {c}, 5, 3] x = {{{values}}}> {{
  ahead = Constant <value_ints = [1, {c}]> ()
  sizes = Concat <axis = 0> (ahead, size)
  y = Resize <{attributes}> ({table}, , , sizes)
}}"""
CUBIC = 'mode = "cubic"'


def text(c: int = 16, attributes: str = CUBIC, table: str = "x", odd: str = "") -> str:
    numbers = np.random.default_rng(0).standard_normal(c * 15).round(4)
    values = ", ".join([odd or "0.5", *map(str, numbers[1:])])
    return TEXT.format(c=c, attributes=attributes, table=table, values=values)


@pytest.mark.parametrize("size", [(9, 8), (2, 2), (5, 3), (1, 20)])
@pytest.mark.parametrize(
    "attributes",
    [
        CUBIC,
        f'{CUBIC}, coordinate_transformation_mode = "align_corners", cubic_coeff_a = -0.5',
        f'{CUBIC}, coordinate_transformation_mode = "pytorch_half_pixel", exclude_outside = 1',
    ],
)
def test_tables_are_products(size: tuple[int, int], attributes: str) -> None:
    written = text(attributes=attributes)
    model = parse(written)
    assert run_passes(model, [fuse_resizes]).total == 1
    assert [node.op_type for node in model.graph].count("MatMul") == 2
    feeds = {"size": np.array(size), "z": np.zeros((1, 16, 5, 3), np.float32)}
    assert_close(run(model, feeds), run(parse(written), feeds))
    assert run_passes(model, [fuse_resizes]).total == 0


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"table": "z"}, None),
        ({"attributes": 'mode = "linear"'}, None),
        ({"c": 3}, "the table is large, or has few channels"),
        ({"odd": "inf"}, "the table is not one of finite float32"),
        ({"attributes": f"{CUBIC}, antialias = 1"}, "it has another attribute"),
    ],
)
def test_others_stay(change: dict[str, object], reason: str | None) -> None:
    leaves(text(**change), fuse_resizes, reason)  # type: ignore[arg-type]  # words of text
