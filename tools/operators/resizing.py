"""A call at other sizes: the exported program says which dims move together.

Each symbol of the program's inputs is given another size, and every dim that is an expression of
symbols follows. The values are those of the sample, repeated or cut off, so that they stay in
the operator's domain; torch itself judges whether the result is a call (indices may point too
far, a fixed shape argument may not fit).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import sympy
import torch

from tools.operators.entries import Call

Sizes = dict[sympy.Symbol, int]
Filling = Callable[[torch.Tensor, tuple[int, ...]], torch.Tensor]

_ORDERS = re.compile(r"sort|kthvalue|topk")
_MATRICES = re.compile(
    r"linalg|cholesky|^lu(_|$)|inverse|solve|det|svd|qr|eig|matrix_exp|norm\.(nuc|fro)"
)


def dynamic_dims(call: Call) -> tuple[tuple[dict[int, object], ...]]:
    """Return the dynamic shapes of a call's module: every dim, where torch allows it."""
    auto = torch.export.Dim.AUTO
    return (tuple(dict.fromkeys(range(t.dim()), auto) for t in call.tensors),)


def symbolic_shapes(program: torch.export.ExportedProgram) -> list[tuple[object, ...]]:
    """Return the dims of a program's inputs: integers, or expressions of symbols."""
    users = set(program.graph_signature.user_inputs)
    values = [n.meta["val"] for n in program.graph.nodes if n.name in users]
    return [tuple(_expression(d) for d in v.shape) for v in values if isinstance(v, torch.Tensor)]


def symbols(program: torch.export.ExportedProgram) -> list[sympy.Symbol]:
    """Return the sizes that are still free, in order of first use."""
    free = (d.free_symbols for dims in symbolic_shapes(program) for d in dims if _is_symbolic(d))
    return list(dict.fromkeys(s for found in free for s in sorted(found, key=str)))


def smaller(program: torch.export.ExportedProgram, call: Call) -> Iterator[Sizes]:
    """Yield sizes with ones: everywhere if the program allows it, else dim by dim."""
    now = _sizes(program, call)
    if len(now) > 1:
        yield _allowed(program, dict.fromkeys(now, 1))
    for symbol in now:
        yield _allowed(program, {**now, symbol: 1})


def larger(program: torch.export.ExportedProgram, call: Call) -> Iterator[Sizes]:
    """Yield larger sizes, the most different first."""
    now = _sizes(program, call)
    yield _allowed(program, {s: 2 * n + 1 for s, n in now.items()})
    yield _allowed(program, {s: n + 2 for s, n in now.items()})
    yield _allowed(program, {s: 2 * n for s, n in now.items()})
    for symbol, n in now.items():
        yield _allowed(program, {**now, symbol: n + 1})


def resized(
    program: torch.export.ExportedProgram, call: Call, sizes: Sizes, name: str
) -> Iterator[Call]:
    """Yield the call at these sizes, with values made in several ways."""
    shapes = [_evaluated(dims, sizes) for dims in symbolic_shapes(program)]
    if len(shapes) != len(call.tensors) or any(n < 0 for dims in shapes for n in dims):
        return
    smallest = min((n for dims in shapes for n in dims if n), default=1)
    fillings: list[Filling] = [faded, tiled, lambda t, dims: bounded(t, dims, smallest)]
    if _MATRICES.search(name):
        fillings.insert(0, continued)
    if _ORDERS.search(name):
        fillings.insert(0, distinct)
    for fill in fillings:
        pairs = zip(call.tensors, shapes, strict=True)
        yield call.given(tuple(fill(t, dims) for t, dims in pairs))


def tiled(x: torch.Tensor, dims: tuple[int, ...]) -> torch.Tensor:
    """Return the elements of ``x``, repeated or cut off; offsets are continued by the last one."""
    if _ascends(x):
        return x[torch.arange(dims[0]).clamp(max=len(x) - 1)]
    return repeated(x, dims)


def repeated(x: torch.Tensor, dims: tuple[int, ...]) -> torch.Tensor:
    """Return the elements of ``x``, repeated or cut off along each axis."""
    for axis, size in enumerate(dims):
        if x.shape[axis] != size:
            if x.shape[axis] == 0:
                return torch.ones(dims, dtype=x.dtype)
            x = x.index_select(axis, torch.arange(size) % x.shape[axis])
    return x


def _ascends(x: torch.Tensor) -> bool:
    """Whether integers may be offsets."""
    integer = x.dtype in (torch.int32, torch.int64)
    return integer and x.dim() == 1 and len(x) > 1 and bool((x.diff() >= 0).all())


def faded(x: torch.Tensor, dims: tuple[int, ...]) -> torch.Tensor:
    """Return ``tiled``, floats a little nearer to zero in each copy: torch orders no ties."""
    found = tiled(x, dims)
    if not x.is_floating_point() or x.dim() == 0:
        return found
    copies = [torch.arange(n) // max(m, 1) for n, m in zip(dims, x.shape, strict=True)]
    for axis, copy in enumerate(copies):
        across = [-1 if a == axis else 1 for a in range(len(dims))]
        found = found * (1 - copy.reshape(across) / 64).to(x.dtype)
    return found


def distinct(x: torch.Tensor, dims: tuple[int, ...]) -> torch.Tensor:
    """Return ``repeated`` with numbers larger in each copy: no more of them are equal."""
    if x.dtype not in (torch.int32, torch.int64, torch.float32) or x.numel() == 0:
        return faded(x, dims)
    found, span = repeated(x, dims), int((x.max() - x.min()).ceil()) + 1
    for axis, (n, m) in enumerate(zip(dims, x.shape, strict=True)):
        across = [-1 if a == axis else 1 for a in range(len(dims))]
        found = found + span * (torch.arange(n) // max(m, 1)).reshape(across).to(x.dtype)
    return found


def bounded(x: torch.Tensor, dims: tuple[int, ...], size: int) -> torch.Tensor:
    """Return ``tiled``, with integers that are indices below ``size``."""
    found = tiled(x, dims)
    integer = not (x.is_floating_point() or x.is_complex() or x.dtype == torch.bool)
    return found.remainder(size) if integer else found


def shaken(x: torch.Tensor, dims: tuple[int, ...]) -> torch.Tensor:
    """Return ``tiled`` with noise, so that tensors of any shape are regular as matrices."""
    noise = torch.rand(dims, generator=torch.Generator().manual_seed(0))
    return tiled(x, dims) + noise.to(x.dtype) if x.is_floating_point() else tiled(x, dims)


def continued(x: torch.Tensor, dims: tuple[int, ...]) -> torch.Tensor:
    """Return matrices cut off, or continued by the identity: they stay regular and definite."""
    if x.dtype == torch.int32 and x.dim():  # pivots: further rows stay where they are
        kept = torch.arange(dims[-1]) < x.shape[-1]
        return tiled(x, dims).where(kept, torch.arange(1, dims[-1] + 1).to(x.dtype))
    if x.dim() < 2:
        return tiled(x, dims)
    if x.dim() > 2 and x.shape[-1] != x.shape[-2]:
        return shaken(x, dims)
    rows, columns = min(x.shape[-2], dims[-2]), min(x.shape[-1], dims[-1])
    wide = torch.eye(dims[-2], dims[-1], dtype=x.dtype).expand(dims).clone()
    wide[..., :rows, :columns] = tiled(x, (*dims[:-2], *x.shape[-2:]))[..., :rows, :columns]
    return wide


def _sizes(program: torch.export.ExportedProgram, call: Call) -> Sizes:
    """Return what the call's own sizes are."""
    found: Sizes = {}
    for dims, tensor in zip(symbolic_shapes(program), call.tensors, strict=True):
        found.update({d: n for d, n in zip(dims, tensor.shape, strict=True) if _is_symbol(d)})
    return {s: found[s] for s in symbols(program) if s in found}


def _allowed(program: torch.export.ExportedProgram, sizes: Sizes) -> Sizes:
    """Keep each size within its range; torch's general lower bound of 2 is none."""
    for symbol, n in sizes.items():
        bounds = program.range_constraints.get(symbol)
        if bounds is not None:
            lower = int(bounds.lower) if bounds.lower.is_Integer and bounds.lower > 2 else 0
            upper = int(bounds.upper) if bounds.upper.is_Integer else n
            sizes[symbol] = max(lower, min(n, upper))
    return sizes


def _evaluated(dims: tuple[object, ...], sizes: Sizes) -> tuple[int, ...]:
    return tuple(int(d.xreplace(sizes)) if _is_symbolic(d) else int(d) for d in dims)


def _expression(dim: object) -> object:
    return dim.node.expr if isinstance(dim, torch.SymInt) else dim


def _is_symbolic(dim: object) -> bool:
    return isinstance(dim, sympy.Expr)


def _is_symbol(dim: object) -> bool:
    return isinstance(dim, sympy.Symbol)
