"""``coreai-onnx convert``."""

from __future__ import annotations

import argparse
import inspect
from collections.abc import Iterable
from typing import Any

from coreai_onnx.cli import output
from coreai_onnx.cli.subject import FACTORY_HELP, Subject, load_object, load_subject
from coreai_onnx.cli.tensors import DynamicDim, parse_dynamic, read_tensor, split_assignments
from coreai_onnx.errors import CommandError

NAME = "convert"
DESCRIPTION = f"""\
convert a torch module to a .onnx file

{FACTORY_HELP}

  # my_models.py
  def tiny():
      return torch.nn.Linear(8, 4).eval(), (torch.randn(2, 8),)

  coreai-onnx convert my_models:tiny -o tiny.onnx
  coreai-onnx convert my_models:tiny -o tiny.onnx --dynamic "input:0=batch[1..64]"
  coreai-onnx convert torch.nn:Identity -o id.onnx --input "input=float32[2,8]"
  coreai-onnx convert my_models:bert -o bert.onnx --dynamic ids:0=batch,1=seq \\
      --externalize my_models:BertLayer --externalize my_models:MyNorm=my_norm
  coreai-onnx convert my_models:bert -o bert.onnx --target contrib --minimum-onnxruntime 1.24
"""


def declare(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("factory", metavar="FACTORY")
    parser.add_argument("--opset", type=int, help="ONNX opset, 18 to 26 (default: 23)")
    parser.add_argument(
        "--dynamic",
        action="append",
        default=[],
        metavar="INPUT:AXIS=NAME,...",
        help="dynamic dims of an input, by axis; bounds are optional: ids:0=batch,1=seq[1..512]",
    )
    parser.add_argument(
        "--input",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="an example input where the factory gives none: FILE.npy or a type, float32[2,8]",
    )
    parser.add_argument(
        "--externalize",
        action="append",
        default=[],
        metavar="CLASS[=NAME]",
        help="make modules of a class (pkg.module:Class) functions; with a name, composites; "
        "auto: make known blocks composites, if they pass a check on the example inputs",
    )
    parser.add_argument("--no-optimize", action="store_true", help="leave the graph passes out")
    output.declare(parser)


def _opset(options: argparse.Namespace) -> int | None:
    """Return the opset that was asked for; a portable file has 18 unless told otherwise."""
    if options.opset is None and options.target == "portable" and not options.minimum_onnxruntime:
        return 18
    opset: int | None = options.opset
    return opset


def execute(options: argparse.Namespace) -> int:
    """Convert, save, and print what was written."""
    dynamic = parse_dynamic(options.dynamic)
    output.check_place(options.output)
    import coreai_onnx

    subject = load_subject(options.factory)
    kwargs = subject.kwargs | _example_inputs(options.input)
    shapes = dynamic_shapes(subject, kwargs, dynamic) if dynamic else subject.dynamic_shapes
    program = coreai_onnx.convert(
        subject.module,
        subject.args,
        kwargs,
        dynamic_shapes=shapes,
        externalize_modules=_externalized(options.externalize) or None,
        opset_version=_opset(options),
        minimum_onnxruntime=options.minimum_onnxruntime,
        optimize=False,
    )
    if not options.no_optimize:
        output.optimize(program, options)
    print(program)
    if program.recognised is not None:
        print(f"\n{program.recognised}")
    print()
    output.save(program, options)
    return 0


def dynamic_shapes(
    subject: Subject, kwargs: dict[str, Any], dynamic: dict[str, tuple[DynamicDim, ...]]
) -> dict[str, Any]:
    """Return ``dynamic_shapes`` for ``torch.export``, by parameter name.

    Raises:
        CommandError: If an input is unknown, the factory gave dynamic shapes itself, or the
            arguments are of a kind that ``torch.export`` cannot make dynamic.
    """
    if subject.dynamic_shapes is not None:
        raise CommandError("the factory returns dynamic_shapes itself; leave --dynamic out")
    signature = inspect.signature(subject.module.forward)
    bound = signature.bind(*subject.args, **kwargs).arguments
    dims = _Dims()
    shapes: dict[str, Any] = {}
    left = dict(dynamic)
    for name, value in bound.items():
        if signature.parameters[name].kind is inspect.Parameter.VAR_KEYWORD:
            raise CommandError(
                f"torch.export has no dynamic dims for a forward() that takes {', '.join(value)} "
                f"as **{name}\n  wrap the module in one whose forward() names its inputs"
            )
        if signature.parameters[name].kind is inspect.Parameter.VAR_POSITIONAL:
            shapes[name] = tuple(dims.of(left.pop(f"{name}.{i}", ())) for i in range(len(value)))
        else:
            shapes[name] = dims.of(left.pop(name, ()))
    if left:
        raise CommandError(
            f"--dynamic {next(iter(left))}: no such input; "
            f"forward() takes {', '.join(bound) or 'none'}"
        )
    return shapes


class _Dims:
    """``torch.export.Dim`` objects by name: one name is one dim everywhere."""

    def __init__(self) -> None:
        self._made: dict[str, tuple[DynamicDim, Any]] = {}

    def of(self, dims: Iterable[DynamicDim]) -> dict[int, Any] | None:
        return {dim.axis: self._dim(dim) for dim in dims} or None

    def _dim(self, dim: DynamicDim) -> Any:
        from torch.export import Dim

        first, made = self._made.get(dim.name, (dim, None))
        if made is None:
            bounds = {"min": dim.min, "max": dim.max}
            made = Dim(
                dim.name, **{key: bound for key, bound in bounds.items() if bound is not None}
            )
            self._made[dim.name] = (dim, made)
        elif (dim.min, dim.max) not in ((None, None), (first.min, first.max)):
            raise CommandError(f"--dynamic: {dim.name} has two different bounds")
        return made


def _example_inputs(texts: list[str]) -> dict[str, Any]:
    import numpy as np
    import torch

    rng = np.random.default_rng(0)
    inputs: dict[str, Any] = {}
    for name, text in split_assignments(texts, "--input").items():
        array = read_tensor(text, rng)
        if array.dtype.name == "bfloat16":
            inputs[name] = torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
        else:
            inputs[name] = torch.from_numpy(array)
    return inputs


def _externalized(texts: list[str]) -> list[Any]:
    from coreai_onnx import ExternalizeSpec

    specs: list[Any] = []
    for text in texts:
        if text == "auto":
            specs.append(text)
            continue
        where, _, name = text.partition("=")
        specs.append(ExternalizeSpec(load_object(where), composite_op_name=name or None))
    return specs
