from __future__ import annotations

import numpy as np
import pytest

from coreai_onnx.passes.cleanup.merge_consecutive import merge_casts
from tests.passes.rewriting import leaves, rewrite, same_numbers

CODES = {"float": 1, "uint8": 2, "int8": 3, "int32": 6, "int64": 7, "bool": 9, "float16": 10, "double": 11, "bfloat16": 16}  # fmt: skip
TEXT = "main ({a}[n] x) => ({c}[n] z) {{ y = Cast <to = {b}> (x)  z = Cast <to = {code}> ({v}) }}"


def text(a: str, b: str, c: str, v: str = "y") -> str:
    return TEXT.format(a=a, b=CODES[b], c=c, code=CODES[c], v=v)


@pytest.mark.parametrize(
    ("a", "b", "c"),
    [
        ("float16", "float", "double"),
        ("float16", "float", "bfloat16"),
        ("float", "double", "int64"),
        ("bool", "int64", "float"),
        ("int32", "double", "float"),
        ("int32", "int64", "float"),
    ],
)
def test_what_loses_nothing_is_left_out(a: str, b: str, c: str) -> None:
    rewrite(text(a, b, c), merge_casts, 1, text(a, b, c, "x"))
    kinds = {"float16": np.float16, "float": np.float32, "bool": np.bool_, "int32": np.int32}
    if c != "bfloat16":  # numpy has none
        feeds = {"x": np.array([0, 1, 5, 7], kinds[a])}
        same_numbers(text(a, b, c), merge_casts, feeds)


@pytest.mark.parametrize(
    ("a", "b", "c"),
    [
        ("float", "float16", "float"),
        ("float", "bfloat16", "float"),
        ("float16", "bfloat16", "float"),
        ("int64", "float", "int64"),
        ("int32", "float", "double"),
        ("float", "int64", "float"),
        ("int64", "int32", "float"),
        ("int32", "double", "float16"),
    ],
)
def test_what_may_lose_something_stays(a: str, b: str, c: str) -> None:
    leaves(text(a, b, c), merge_casts, "the dtype between the casts may lose something")
