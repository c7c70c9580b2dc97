"""Mixtures of experts that sort their tokens, exported as ``gather_mm``.

The experts of transformers sort tokens by expert, count them, multiply group by group, and undo the
sorting. This is an optimization for GPUs. The semantics are one matrix per token, which is the
composite ``gather_mm``.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch

from coreai_onnx.composites import torch_ops
from coreai_onnx.export.compat.patches import patched
from coreai_onnx.model.dependencies import require

IMPLEMENTATIONS = ("grouped_mm", "batched_mm", "eager")
"""The implementations of transformers that are replaced; they are equivalent."""
Exchange = Callable[[str | None, Callable[..., Any]], Callable[..., Any]]
_MEMBERS = ("_apply_gate", "has_bias", "is_transposed")
"""What transformers adds to modules of experts, and the forwards here read."""
_LATER_MEMBERS = {"has_gate": True, "has_post_expert_norm": False, "_is_expert_parallel": False}
"""What later releases than 5.0 add to them, with what the experts of earlier ones do."""


@contextmanager
def experts_as_gather_mm() -> Iterator[None]:
    """While active, experts of transformers compute their products with ``gather_mm``.

    ```python
    with experts_as_gather_mm():
        exported = torch.export.export(model, args, dynamic_shapes=dims)
    ```

    The results equal those of ``grouped_mm`` up to rounding. Nothing is done if transformers is not
    loaded or has no registry of experts. Everything is restored on exit.
    """
    with ExitStack() as patches:
        patches.enter_context(exchanged_experts(_gathered))
        for home, name, method, wrap in _FURTHER:
            experts_class = getattr(sys.modules.get(f"transformers.models.{home}"), name, None)
            if experts_class is not None:
                patches.enter_context(patched(experts_class, method, wrap))
        yield


@contextmanager
def exchanged_experts(exchange: Exchange) -> Iterator[bool]:
    """While active, the forward of experts modules is replaced.

    Args:
        exchange: Returns the forward, given the name of an implementation and its forward.

    Yields:
        Whether transformers is loaded and has a registry of experts.
    """
    # Not imported here: a model of transformers has imported it, and others do not need it.
    home = sys.modules.get("transformers.integrations.moe")
    registered: Any = getattr(home, "ALL_EXPERTS_FUNCTIONS", None)
    if registered is None:
        yield False
        return

    def wrap(inherited: Callable[..., Any]) -> Callable[..., Any]:
        def look_up(*arguments: Any) -> Callable[..., Any]:
            implementation = arguments[0] if has_method else arguments[1]
            return exchange(implementation, inherited(*arguments))

        return look_up

    # transformers 5.0 looks the forward up by ``[]``, a method that Python finds in the class only.
    has_method = hasattr(registered, "get_interface")
    owner = registered if has_method else type(registered)
    with patched(owner, "get_interface" if has_method else "__getitem__", wrap):
        yield True


def _gathered(implementation: str | None, original: Callable[..., Any]) -> Callable[..., Any]:
    if implementation in IMPLEMENTATIONS or implementation is None:
        return experts_forward(original)
    return original


def experts_forward(original: Callable[..., Any]) -> Callable[..., torch.Tensor]:
    """Return a forward for experts modules that computes the products with ``gather_mm``.

    Args:
        original: The forward that is used for experts on several devices.
    """

    def forward(
        self: Any,
        hidden_states: torch.Tensor,
        top_k_index: torch.Tensor,
        top_k_weights: torch.Tensor,
    ) -> torch.Tensor:
        require("transformers", [(self, _MEMBERS)])
        # Each device holds only some of the matrices, which gather_mm would need in one tensor.
        if _later(self, "_is_expert_parallel"):
            spread: torch.Tensor = original(self, hidden_states, top_k_index, top_k_weights)
            return spread
        product = functools.partial(expert_product, self)
        return weighted_experts(self, product, hidden_states, top_k_index, top_k_weights)

    return forward


def _later(experts: Any, member: str) -> bool:
    return bool(getattr(experts, member, _LATER_MEMBERS[member]))


def weighted_experts(
    experts: Any,
    product: Callable[[str, torch.Tensor, torch.Tensor], torch.Tensor],
    hidden_states: torch.Tensor,
    top_k_index: torch.Tensor,
    top_k_weights: torch.Tensor,
) -> torch.Tensor:
    """Return the weighted sum of the chosen experts, ``[tokens, hidden]``.

    Args:
        experts: The module of transformers, whose activation and norm are used.
        product: Returns ``x [tokens, 1 or k, 1, in]`` times the chosen matrices of a weight, given
            its name, ``x`` and the chosen experts ``[tokens, k]``.
        hidden_states: ``[tokens, hidden]``.
        top_k_index: Integers, ``[tokens, k]``.
        top_k_weights: ``[tokens, k]``.
    """
    has_gate = _later(experts, "has_gate")
    first = "gate_up_proj" if has_gate else "up_proj"
    x = product(first, hidden_states[:, None, None, :], top_k_index)
    # The activations of transformers take one axis of tokens.
    flat = x.flatten(0, 2)
    flat = experts._apply_gate(flat) if has_gate else experts.act_fn(flat)  # noqa: SLF001
    x = flat.reshape(*x.shape[:3], flat.shape[-1])
    x = product("down_proj", x, top_k_index).squeeze(2)
    if _later(experts, "has_post_expert_norm"):
        x = experts.post_expert_norm(x)
    weighted: torch.Tensor = x * top_k_weights.unsqueeze(-1)
    return weighted.sum(dim=1).to(hidden_states.dtype)


def _dbrx(original: Callable[..., Any]) -> Callable[..., torch.Tensor]:
    """Return the forward of DBRX's experts, whose matrices are stored as one."""
    del original

    def forward(self: Any, hidden_states: torch.Tensor, *chosen: torch.Tensor) -> torch.Tensor:
        indices, scores = chosen
        shape = (self.num_experts, self.ffn_hidden_size, self.hidden_size)
        gate, up, down = (getattr(self.mlp, name).view(shape) for name in ("w1", "v1", "w2"))
        x = hidden_states.reshape(-1, 1, 1, self.hidden_size)
        inner = self.mlp.activation_fn(_product(x, gate, indices))
        inner = inner * _product(x, up, indices)
        # w2 is stored as [ffn, hidden] like the others, so it is not transposed here.
        outputs = _product(inner, down, indices, transposed=False).squeeze(2)
        return (outputs * scores.unsqueeze(-1)).sum(dim=1).view_as(hidden_states)

    return forward


def _switch(original: Callable[..., Any]) -> Callable[..., torch.Tensor]:
    """Return the forward of the experts of Switch Transformers: one for a token, or none."""
    del original

    def forward(
        self: Any, hidden_states: torch.Tensor, selected: torch.Tensor, scores: torch.Tensor
    ) -> torch.Tensor:
        experts = list(self.values())
        first, last = (
            torch.stack([getattr(expert, name).weight for expert in experts])
            for name in ("wi", "wo")
        )
        chosen = selected.argmax(dim=-1)
        x = hidden_states[:, None, None, :]
        inner = experts[0].act(_product(x, first, chosen))
        outputs = _product(inner, last, chosen)[:, 0, 0]
        is_routed = selected.to(scores.dtype).sum(dim=-1)  # 0 beyond the capacity of an expert
        return outputs * scores * is_routed

    return forward


def _switch_router(original: Callable[..., Any]) -> Callable[..., Any]:
    """Return a forward that skips conversions to the same dtype, which torch.export rejects."""

    def wrap(convert: Callable[..., Any]) -> Callable[..., Any]:
        return lambda layer, dtype: layer if layer.weight.dtype == dtype else convert(layer, dtype)

    def forward(self: Any, hidden_states: torch.Tensor) -> Any:
        modules = vars(self)["_modules"]  # also of the proxy that stands for it while torch traces
        layer = modules["classifier"]
        try:
            with patched(torch.nn.Linear, "to", wrap):
                return original(self, hidden_states)
        finally:  # it assigns the layer to itself: a proxy, which the next trace does not know
            modules["classifier"] = layer

    return forward


def _jetmoe_router(original: Callable[..., Any]) -> Callable[..., Any]:
    """Return the forward of JetMoE's router without the rows sorted by expert.

    It returns the chosen experts ``[tokens, k]`` and their weights in place of the sorted rows.
    """
    del original

    def forward(self: Any, hidden_states: torch.Tensor) -> Any:
        logits = self.layer(hidden_states).float()
        best, chosen = logits.topk(self.top_k, dim=1)
        return chosen, None, best.softmax(dim=1).type_as(hidden_states), None, logits

    return forward


def _jetmoe_mlp(original: Callable[..., Any]) -> Callable[..., torch.Tensor]:
    """Return the forward of JetMoE's gated layers."""
    del original

    def forward(self: Any, layer_input: torch.Tensor) -> torch.Tensor:
        rows = layer_input.flatten(0, 1)
        chosen, _, weights, _, _ = self.router(rows)
        x = _product(rows[:, None, None, :], self.input_linear.weight, chosen)
        gate, up = x.chunk(2, dim=-1)
        return _jetmoe_sum(self, self.activation(gate) * up, chosen, weights, layer_input)

    return forward


def _jetmoe_sum(
    layer: Any, x: torch.Tensor, chosen: torch.Tensor, weights: torch.Tensor, like: torch.Tensor
) -> torch.Tensor:
    """Return the weighted sum of the last products of the chosen experts, by batch and token."""
    x = _product(x, layer.output_linear.weight, chosen).squeeze(2)
    total = (x * weights.unsqueeze(-1)).sum(dim=1).view(*like.shape[:2], -1)
    biased: torch.Tensor = total + layer.bias
    return biased


def _jetmoe_queries(original: Callable[..., Any]) -> Callable[..., Any]:
    """Return the method that computes the queries of JetMoE's attention."""
    del original

    def queries(self: Any, layer_input: torch.Tensor) -> Any:
        rows = layer_input.flatten(0, 1)
        chosen, _, weights, _, logits = self.router(rows)
        x = _product(rows[:, None, None, :], self.input_linear.weight, chosen)
        return x.view(*layer_input.shape[:2], self.top_k, -1), logits, (chosen, weights)

    return queries


def _jetmoe_outputs(original: Callable[..., Any]) -> Callable[..., torch.Tensor]:
    """Return the method that computes the outputs of JetMoE's attention."""
    del original

    def outputs(self: Any, layer_input: torch.Tensor, routing: Any) -> torch.Tensor:
        chosen, weights = routing
        rows = layer_input.flatten(0, 1).unsqueeze(2)
        return _jetmoe_sum(self, rows, chosen, weights, layer_input)

    return outputs


_JETMOE = "jetmoe.modeling_jetmoe"
_SWITCH = "switch_transformers.modeling_switch_transformers"
_FURTHER = (
    ("dbrx.modeling_dbrx", "DbrxExperts", "forward", _dbrx),
    (_JETMOE, "JetMoeTopKGating", "forward", _jetmoe_router),
    (_JETMOE, "JetMoeMoE", "forward", _jetmoe_mlp),
    (_JETMOE, "JetMoeMoA", "map", _jetmoe_queries),
    (_JETMOE, "JetMoeMoA", "reduce", _jetmoe_outputs),
    (_SWITCH, "SwitchTransformersExperts", "forward", _switch),
    (_SWITCH, "SwitchTransformersTop1Router", "forward", _switch_router),
)
"""Classes of transformers that loop over the experts themselves, and what replaces
their methods."""


def expert_product(experts: Any, name: str, x: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
    """Return ``x [tokens, 1 or k, 1, in]`` times the chosen matrices, ``[tokens, k, 1, out]``."""
    weight = getattr(experts, name)
    product = _product(x.to(weight.dtype), weight, chosen, transposed=not experts.is_transposed)
    if experts.has_bias:
        product = product + getattr(experts, f"{name}_bias")[chosen].unsqueeze(2)
    return product


def _product(
    x: torch.Tensor, weight: torch.Tensor, chosen: torch.Tensor, *, transposed: bool = True
) -> torch.Tensor:
    product: torch.Tensor = torch_ops.gather_mm(x, weight, None, chosen, 0, transposed)
    return product
