"""Expressions keep the order of the nodes."""

from __future__ import annotations

from pathlib import Path

from tests.model.python.packages import source
from tests.support.small_models import parse


def body(nodes: str, folder: Path) -> list[str]:
    text = f"""<ir_version: 10, opset_import: ["": 21]>
    g (float[n] a, float[n] b) => (float[n] y) {{ {nodes} }}"""
    lines = source(parse(text), folder).splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("def main"))
    return [line.strip() for line in lines[start + 1 :]]


def test_values_that_are_used_once_are_folded(tmp_path: Path) -> None:
    lines = body("p = Neg(a) q = Abs(b) y = Add(p, q)", tmp_path)
    assert lines == ["return op.Add(op.Neg(a), op.Abs(b))"]


def test_another_order_keeps_a_name(tmp_path: Path) -> None:
    lines = body("p = Neg(a) q = Abs(b) y = Add(q, p)", tmp_path)
    assert lines == ["p = op.Neg(a)", "return op.Add(op.Abs(b), p)"]


def test_values_that_are_used_twice_have_a_name(tmp_path: Path) -> None:
    lines = body("p = Neg(a) y = Mul(p, p)", tmp_path)
    assert lines == ["p = op.Neg(a)", "return op.Mul(p, p)"]


def test_deep_expressions_are_divided(tmp_path: Path) -> None:
    chain = " ".join(f"v{i} = Neg({f'v{i - 1}' if i else 'a'})" for i in range(12))
    lines = body(f"{chain} y = Neg(v11)", tmp_path)
    assert len(lines) > 2
    assert all(line.count("Neg") <= 4 for line in lines)
