"""Models that are split over ranks, layer by layer (tensor parallelism).

After Shoeybi et al. 2019 ("Megatron-LM: Training Multi-Billion Parameter Language Models Using
Model Parallelism"): a layer whose outputs are split is followed by one whose inputs are, and the
sum of the results of all ranks is that of the model. Embeddings are split by tokens, and so are the
logits.
"""

from __future__ import annotations

import copy
import functools
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel

from coreai_onnx.composites import torch_ops
from coreai_onnx.composites.products import MOST_RANKS
from coreai_onnx.errors import ModelSourceError
from coreai_onnx.export.deferred import deferred_source

Style = str | ColwiseParallel | RowwiseParallel
"""How a module or parameter is split: a style of torch, or a word of transformers' ``tp_plan``."""
_WHOLE = ("replicate", "replicated_with_grad_allreduce")
_SUMMED, _GATHERED = ("rowwise", "moe_tp_experts"), ("colwise_gather_output", "colwise_rep")
_WHOLE_EXPERTS, _DISPATCHED = "grouped_gemm", "ep_dispatch_experts"
_WORDS = (
    "colwise", "packed_colwise", "embedding_rowwise", _WHOLE_EXPERTS, _DISPATCHED,
    *_SUMMED, *_GATHERED, *_WHOLE,
)  # fmt: skip
_KEY_HEADS = ("k_proj", "v_proj")
_COUNTS = ("num_heads", "num_attention_heads", "num_key_value_heads")


def shard(
    model: Any, ranks: int, rank: int, plan: Mapping[str, Style] | None = None
) -> torch.nn.Module:
    """Return the part of a model that one rank computes.

    Its results are those of the model, but for the order of sums, once the files of all ranks run.
    In torch it runs for shapes only, as if the weights of the other ranks were zeros.

    Args:
        model: A decoder of transformers; it does not change.
        ranks: How many ranks there are.
        rank: The rank.
        plan: The style of each module or parameter that is split, by its name with ``*`` for any
            number; None is that of transformers, ``model.tp_plan``.

    Raises:
        ModelSourceError: If there are more ranks than heads, a size is not divisible, the plan has
            a name or style that is not known, or the model has no plan, exceeds the memory, or has
            weights of few bits.
    """
    if not 1 <= ranks <= MOST_RANKS or not 0 <= rank < ranks:
        raise ModelSourceError(f"rank {rank} of {ranks}: there are 1 to {MOST_RANKS} ranks")
    if any(deferred_source(weight) is not None for weight in model.parameters()):
        raise ModelSourceError("a model that exceeds the memory is not split over ranks")
    split = _Split(ranks, rank)
    styles = _styles(model, getattr(model, "tp_plan", None) if plan is None else plan)
    parts: dict[int, torch.Tensor] = {}
    for name, style in styles.items():
        for weight, part in split.parts(model, name, style):
            first = parts.setdefault(id(weight), part)
            if not first.equal(part):
                raise ModelSourceError(f"{name} is tied to a weight that the plan splits otherwise")
    # What the plan does not name is shared with the model: it is the same in all ranks.
    weights = [*model.parameters(), *model.buffers()]
    memo = {id(weight): parts.get(id(weight), weight) for weight in weights}
    of_rank: torch.nn.Module = copy.deepcopy(model, memo)
    for name, style in styles.items():
        split.adapt(of_rank, model, name, style)
    _count_heads(of_rank)
    return of_rank.eval()


def _styles(model: Any, plan: Mapping[str, Style] | None) -> dict[str, str]:
    """Return the words of a plan by the names of modules and parameters."""
    if not plan:
        raise ModelSourceError(
            f"{type(model).__name__} has no plan for ranks (tp_plan); give plan={{name: style}}"
        )
    # Both have styles in a plan; the modules first, because a parameter's module may have one, too.
    names = [*dict(model.named_modules()), *dict(model.named_parameters(remove_duplicate=False))]
    styles: dict[str, str] = {}
    for pattern, style in plan.items():
        word = _word(style, pattern)
        expression = re.escape(pattern).replace(r"\*", r"\d+")
        found = [name for name in names if re.fullmatch(expression, name)]
        # The plans of transformers name layers that only some models of a class have.
        styles.update(dict.fromkeys(found, word))
    if not set(styles.values()).difference(_WHOLE):
        raise ModelSourceError(f"{type(model).__name__} has none of {', '.join(plan)}")
    for name, word in list(styles.items()):
        if word == "rowwise" and isinstance(_member(model, name), torch.nn.Embedding):
            styles[name] = "embedding_rowwise"  # as torch's RowwiseParallel splits it
    return {name: word for name, word in styles.items() if word not in _WHOLE}


def _word(style: Style, name: str) -> str:
    if isinstance(style, RowwiseParallel):
        return "rowwise"
    if isinstance(style, ColwiseParallel):
        gathers = any(one.is_replicate() for one in style.output_layouts)
        return "colwise_gather_output" if gathers else "colwise"
    if style not in _WORDS:
        raise ModelSourceError(f"{name}: the style {style!r} must be one of {', '.join(_WORDS)}")
    return style


def _member(model: Any, name: str) -> Any:
    return functools.reduce(getattr, name.split("."), model)


@dataclass(frozen=True)
class _Split:
    """How weights are split over ranks."""

    ranks: int
    rank: int

    def parts(
        self, model: Any, name: str, style: str
    ) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Yield the weights that a style splits, each with the part of the rank."""
        member = _member(model, name)
        if style in ("moe_tp_experts", _DISPATCHED):
            return  # its parameters have styles of their own
        if isinstance(member, torch.nn.Parameter):
            experts = _member(model, name.rpartition(".")[0])
            if style == _WHOLE_EXPERTS:
                for one in (member, *_biases(experts, name)):
                    yield one, _parameter(self._part(one, 0, name), one)
                return
            axis = (
                2 if (style == "rowwise") != bool(getattr(experts, "is_transposed", False)) else 1
            )
            cut = self._halves if style == "packed_colwise" else self._part
            yield member, _parameter(cut(member, axis, name), member)
            for bias in _biases(experts, name):
                is_sum = style == "rowwise"
                yield bias, self._once(bias) if is_sum else _parameter(cut(bias, 1, name), bias)
            return
        if not isinstance(member, torch.nn.Linear | torch.nn.Embedding):
            raise ModelSourceError(
                f"{name} is a {type(member).__name__}: only Linear and Embedding are split, before "
                "they are quantized"
            )
        weight: torch.Tensor = member.weight
        added: torch.Tensor | None = getattr(member, "bias", None)
        if style == "rowwise":
            yield weight, _parameter(self._part(weight, 1, name), weight)
            if added is not None:
                yield added, self._once(added)
            return
        units = _heads(model, name)
        yield weight, _parameter(self._rows(weight, name, style, units), weight)
        if added is not None:
            yield added, _parameter(self._rows(added, name, style, units), added)

    def _rows(self, weight: torch.Tensor, name: str, style: str, units: int) -> torch.Tensor:
        if style == "embedding_rowwise" or style in _GATHERED:
            size = -(-weight.shape[0] // self.ranks)
            # Equal parts: the last one ends with rows of zeros that nothing selects.
            missing = size * self.ranks - weight.shape[0]
            padding = [0, 0] * (weight.dim() - 1) + [0, missing]
            padded = torch.nn.functional.pad(weight, padding) if missing else weight
            return padded[self.rank * size : (self.rank + 1) * size]
        if 0 < units < self.ranks and self.ranks % units == 0 and name.endswith(_KEY_HEADS):
            # Several ranks have the same head of keys.
            heads: torch.Tensor = weight.unflatten(0, (units, -1))
            return heads[self.rank * units // self.ranks]
        if units % self.ranks:
            raise ModelSourceError(f"{name}: {units} heads cannot be split over {self.ranks} ranks")
        return self._part(weight, 0, name)

    def _part(self, weight: torch.Tensor, axis: int, name: str) -> torch.Tensor:
        size = weight.shape[axis]
        if size % self.ranks:
            raise ModelSourceError(f"{name}: {size} cannot be split over {self.ranks} ranks")
        size //= self.ranks
        return weight.narrow(axis, self.rank * size, size)

    def _halves(self, weight: torch.Tensor, axis: int, name: str) -> torch.Tensor:
        """Return parts of both halves: of a gate, and of what it is for."""
        return torch.cat([self._part(half, axis, name) for half in weight.chunk(2, axis)], axis)

    def _once(self, bias: torch.Tensor) -> torch.Tensor:
        """Return a bias for the first rank, and zeros for the others: results are summed."""
        return _parameter(bias if self.rank == 0 else torch.zeros_like(bias), bias)

    def adapt(self, part: Any, whole: Any, name: str, style: str) -> None:
        """Let a module of the part exchange its results with those of the other ranks."""
        member: Any = _member(part, name)
        if isinstance(member, torch.nn.Linear):
            member.out_features, member.in_features = member.weight.shape
        if style == "embedding_rowwise":
            count = member.num_embeddings = member.weight.shape[0]
            member.padding_idx = None  # it has a meaning for gradients only
            _replace_forward(member, _looked_up, self, first=self.rank * count)
        elif style == _DISPATCHED:
            matrices = next(member.parameters(recurse=False), None)
            if matrices is None:
                raise ModelSourceError(f"{name} has no matrices of experts of its own")
            count = member.num_experts = matrices.shape[0]
            _replace_forward(member, _dispatched, self, first=self.rank * count, count=count)
        elif style in _SUMMED and isinstance(member, torch.nn.Module):
            _replace_forward(member, _summed, self)
        elif style in _GATHERED:
            _replace_forward(member, _gathered, self, size=_member(whole, name).weight.shape[0])


def _parameter(part: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    # Contiguous: the file and the memory of a rank have its part only.
    return torch.nn.Parameter(part.detach().contiguous().clone(), like.requires_grad)


def _biases(experts: Any, name: str) -> list[torch.Tensor]:
    bias = getattr(experts, f"{name.rpartition('.')[2]}_bias", None)
    return [] if bias is None else [bias]


def _heads(model: Any, name: str) -> int:
    """Return the number of heads that a projection of an attention has; 0 for other layers."""
    home, _, last = name.rpartition(".")
    size = getattr(_member(model, home) if home else model, "head_dim", None)
    if not isinstance(size, int) or last not in ("q_proj", *_KEY_HEADS):
        return 0
    return int(_member(model, name).weight.shape[0]) // size


def _count_heads(part: Any) -> None:
    """Let attentions and configuration have the numbers of heads of the rank."""
    for module in part.modules():
        if not all(hasattr(module, name) for name in ("q_proj", "k_proj", "head_dim")):
            continue
        rows = (getattr(module, name).weight.shape[0] for name in ("q_proj", "k_proj"))
        heads, keys = (count // module.head_dim for count in rows)
        if hasattr(module, "num_key_value_groups"):
            module.num_key_value_groups = heads // keys
        config = getattr(module, "config", None)
        for owner in (module, config):
            for name, count in zip(_COUNTS, (heads, heads, keys), strict=True):
                if isinstance(getattr(owner, name, None), int):
                    setattr(owner, name, count)
        if config is not None:
            config.head_dim = module.head_dim  # not the hidden size by the number of heads


def _replace_forward(
    module: torch.nn.Module, forward: Callable[..., torch.Tensor], split: _Split, **further: int
) -> None:
    """Give one module a class of its own with another forward, as ``parametrize`` does."""
    cls = type(module)
    run = functools.partialmethod(forward, cls, split, **further)
    module.__class__ = type(cls.__name__, (cls,), {"forward": run, "__module__": cls.__module__})


def _summed(self: Any, cls: Any, split: _Split, *args: Any) -> torch.Tensor:
    return _reduced(cls.forward(self, *args), split)


def _reduced(x: torch.Tensor, split: _Split) -> torch.Tensor:
    total: torch.Tensor = torch_ops.all_reduce(x.unsqueeze(0), split.ranks, split.rank)
    return total.squeeze(0)


def _dispatched(
    self: Any,
    cls: Any,
    split: _Split,
    x: torch.Tensor,
    chosen: torch.Tensor,
    factors: torch.Tensor,
    *,
    first: int,
    count: int,
) -> torch.Tensor:
    """Return the weighted sum of chosen experts: those of other ranks have the factor zero."""
    local = chosen - first
    is_here = (local >= 0) & (local < count)
    # Of their places, the first expert of this rank takes the rows, which are in memory already.
    here = torch.where(is_here, local, 0), torch.where(is_here, factors, 0)
    return _reduced(cls.forward(self, x, *here), split)


def _gathered(self: Any, cls: Any, split: _Split, x: torch.Tensor, *, size: int) -> torch.Tensor:
    part = cls.forward(self, x).unsqueeze(0)
    whole: torch.Tensor = torch_ops.all_gather(part, split.ranks, split.rank).squeeze(0)
    return whole if whole.shape[-1] == size else whole[..., :size]


def _looked_up(
    self: Any, cls: Any, split: _Split, ids: torch.Tensor, *, first: int
) -> torch.Tensor:
    """Return the rows of tokens: zeros from ranks that do not have them, in the sum."""
    local = ids - first
    is_here = (local >= 0) & (local < self.num_embeddings)
    rows: torch.Tensor = cls.forward(self, torch.where(is_here, local, 0))
    return _reduced(torch.where(is_here.unsqueeze(-1), rows, 0), split)
