"""Mixed precision: which weight gets which scheme, by patterns of module paths."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Any

from coreai_onnx.errors import QuantizationError
from coreai_onnx.model.provenance.debug_info import CLASS
from coreai_onnx.quantization.weights.convolutions import ConvolutionWeight
from coreai_onnx.quantization.weights.products import MatrixWeight
from coreai_onnx.quantization.weights.scheme import Scheme, fitting_sizes

Rule = int | Mapping[str, Any] | Scheme | None
"""What a pattern selects: bits, fields of the scheme that differ, a scheme, or None to skip."""
MINIMUM_SIZE = 4096
"""Weights with fewer elements keep their dtype: they are a small part of a file."""


@dataclass(frozen=True)
class Rules:
    """Chooses the scheme of each weight.

    Attributes:
        default: The scheme of weights that no pattern matches.
        patterns: Shell patterns (``"*.lm_head"``, ``"model.layers.0.*"``) of module paths or of
            names of weights, with their rules; the first that matches counts.
        embeddings: Whether tables of embeddings are quantized.
        minimum_size: The least number of elements of a weight that no pattern matches.
        convolutions: Whether weights of convolutions are quantized.
    """

    default: Scheme
    patterns: Mapping[str, Rule]
    embeddings: bool = True
    minimum_size: int = MINIMUM_SIZE
    convolutions: bool = False

    @classmethod
    def of(
        cls,
        default: Scheme,
        rules: Mapping[str, Rule] | None,
        skip: Sequence[str],
        *,
        embeddings: bool,
        minimum_size: int,
        convolutions: bool = False,
    ) -> Rules:
        """Return rules in which ``skip`` precedes ``rules``.

        Raises:
            QuantizationError: A pattern is empty, or an argument is of an unknown kind or out of
                range.
        """
        if not isinstance(skip, Iterable) or isinstance(skip, str):
            raise QuantizationError(f"skip={skip!r}; give a list of patterns")
        if rules is not None and not isinstance(rules, Mapping):
            raise QuantizationError(
                f"rules is a {type(rules).__name__}\n  give a mapping of patterns to bits, "
                "fields of a scheme, or None"
            )
        if isinstance(minimum_size, bool) or not isinstance(minimum_size, int) or minimum_size < 0:
            raise QuantizationError(f"minimum_size={minimum_size!r}; give a number of elements")
        # ``setdefault`` below then keeps None for a pattern that is in both.
        patterns: dict[str, Rule] = dict.fromkeys(skip)
        for pattern, rule in (rules or {}).items():
            patterns.setdefault(pattern, _scheme_of(pattern, rule, default))
        if wrong := [pattern for pattern in patterns if not isinstance(pattern, str)]:
            raise QuantizationError(
                f"the pattern {wrong[0]!r} is a {type(wrong[0]).__name__}, not a text"
            )
        if "" in patterns:
            raise QuantizationError("an empty pattern matches no module; '*' matches all of them")
        return cls(default, patterns, embeddings, minimum_size, convolutions)

    def check_used(self, weights: Sequence[MatrixWeight]) -> None:
        """Check that each pattern matches a weight.

        Raises:
            QuantizationError: A pattern matches none.
        """
        for pattern in self.patterns:
            if not any(_matches(pattern, weight) for weight in weights):
                names = ", ".join(weight.path for weight in weights[:4])
                raise QuantizationError(
                    f"the pattern {pattern!r} matches no weight\n  there are {names}"
                    f"{', …' if len(weights) > 4 else ''}"
                )

    def choose(self, weight: MatrixWeight) -> Scheme | str:
        """Return the scheme of a weight, or the reason why it keeps its dtype.

        Raises:
            QuantizationError: The groups that a pattern selects do not divide the inputs of a
                product. Those of the default scheme become smaller.
        """
        matching = [rule for pattern, rule in self.patterns.items() if _matches(pattern, weight)]
        if not matching:
            reason = self._kept(weight)
            return reason or self._nearest(weight)
        rule = matching[0]
        return self._fitting(weight, rule) if isinstance(rule, Scheme) else "skipped by a pattern"

    def leaves_out(self, path: str, name: str) -> bool:
        """Return whether the first pattern that matches a layer selects no scheme."""
        rules = [
            rule
            for pattern, rule in self.patterns.items()
            if fnmatchcase(path, pattern) or fnmatchcase(name, pattern)
        ]
        return bool(rules) and rules[0] is None

    def _kept(self, weight: MatrixWeight) -> str:
        if weight.size < self.minimum_size:
            return f"fewer than {self.minimum_size} elements"
        if not weight.is_lookup:
            return ""
        if not self.embeddings:
            return "an embedding"
        # Tables of angles and masks are looked up as well, and are too sensitive for few bits; only
        # embeddings share their table with a head.
        tied = not all(product.is_lookup for product in weight.products)
        is_table = any(p.node.metadata_props.get(CLASS) == "Embedding" for p in weight.products)
        return "" if tied or is_table else "a lookup that is not known to be an embedding"

    def _nearest(self, weight: MatrixWeight) -> Scheme | str:
        """Return the default scheme with groups that divide the inputs, as large as possible."""
        columns, default = weight.shape[-1], self.default
        # Groups of convolutions are whole kernels: they choose a size of their own.
        if isinstance(weight, ConvolutionWeight) or default.group_of(columns):
            return self._fitting(weight, default)
        size = default.group_size or columns
        smaller = [n for n in fitting_sizes(columns, default.bits) if n <= size]
        if smaller:
            return replace(default, group_size=smaller[-1])
        return f"groups of {size} or less do not divide its {columns} inputs into whole bytes"

    def _fitting(self, weight: MatrixWeight, scheme: Scheme) -> Scheme | str:
        if isinstance(weight, ConvolutionWeight):
            return weight.fitted(scheme)
        columns = weight.shape[-1]
        if scheme.group_of(columns):
            return scheme
        sizes = ", ".join(map(str, fitting_sizes(columns, scheme.bits)))
        raise QuantizationError(
            f"{weight.path}: groups of {scheme.group_size or columns} do not divide its {columns} "
            f"inputs into whole bytes\n  weight {weight.name!r}: "
            + (f"choose a group size of {sizes}, or " if sizes else "")
            + f'leave it out with skip=["{weight.path}"]'
        )


def _matches(pattern: str, weight: MatrixWeight) -> bool:
    # ``fnmatch`` would ignore the case of names on Windows.
    return any(fnmatchcase(name, pattern) for name in (*weight.paths, weight.name))


def _scheme_of(pattern: str, rule: Rule, default: Scheme) -> Scheme | None:
    if rule is None or isinstance(rule, Scheme):
        return rule
    fields = {"bits": rule} if isinstance(rule, int) else rule
    try:
        return replace(default, **fields)
    # ``replace`` raises it for an unknown field, and ``**`` for what is not a mapping.
    except TypeError as error:
        raise QuantizationError(
            f"the rule of {pattern!r} is {rule!r}; give bits, a mapping of fields of a scheme, "
            "or None"
        ) from error
