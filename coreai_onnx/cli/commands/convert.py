"""``coreai-onnx convert``."""

from __future__ import annotations

import argparse
import inspect
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from coreai_onnx.cli.options import output, quantization
from coreai_onnx.cli.options.numbers import SEED, SEED_HELP, repeated, stages_shown
from coreai_onnx.cli.options.subject import (
    FACTORY_HELP,
    PROGRAM_SUFFIX,
    Subject,
    load_object,
    load_subject,
)
from coreai_onnx.cli.options.tensors import (
    DynamicDim,
    parse_dynamic,
    read_tensor,
    split_assignments,
)
from coreai_onnx.debugging.difference import Array
from coreai_onnx.errors import CommandError
from coreai_onnx.messages import begin_stage, printable
from coreai_onnx.program import OnnxProgram
from coreai_onnx.targets.opsets import chosen_opset

if TYPE_CHECKING:
    import torch
    from torch.export import ExportedProgram

NAME = "convert"
DESCRIPTION = f"""\
convert a torch module to a .onnx file

{FACTORY_HELP}

  # my_models.py
  def tiny():
      return torch.nn.Linear(8, 4).eval(), (torch.randn(2, 8),)

  coreai-onnx convert my_models:tiny -o tiny.onnx
  coreai-onnx convert exported.pt2 -o exported.onnx
  coreai-onnx convert my_models:tiny -o tiny.onnx --dynamic "input:0=batch[1..64]"
  coreai-onnx convert torch.nn:Identity -o id.onnx --input "input=float32[2,8]"
  coreai-onnx convert my_models:bert -o bert.onnx --dynamic ids:0=batch,1=seq \\
      --externalize my_models:BertLayer --externalize my_models:MyNorm=my_norm
  coreai-onnx convert my_models:bert -o bert.onnx --target contrib --minimum-onnxruntime 1.24
  coreai-onnx convert my_models:bert -o bert_int4.onnx --bits 4 --target kernels
"""


def declare(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("factory", metavar="FACTORY")
    parser.add_argument("--opset", type=int, help="ONNX opset, 18 to 26 (default: 23)")
    repeated(
        parser,
        "--dynamic",
        "INPUT:AXIS=NAME,...",
        "dynamic dims of an input, by axis; bounds are optional: ids:0=batch,1=seq[1..512]",
    )
    repeated(
        parser,
        "--input",
        "NAME=VALUE",
        "an example input that the factory does not give: FILE.npy or a type, float32[2,8]",
    )
    repeated(
        parser,
        "--externalize",
        "CLASS[=NAME]",
        "make modules of a class (pkg.module:Class) functions; with a name, composites; "
        "auto: make known blocks composites, if they pass a check on the example inputs",
    )
    parser.add_argument(
        "--record",
        type=Path,
        metavar="RECORD.pt2",
        help="write the exported program and its inputs, with which blame finds wrong nodes",
    )
    parser.add_argument("--no-optimize", action="store_true", help="do not run the graph passes")
    parser.add_argument("--seed", type=SEED, default=0, help=SEED_HELP)
    output.declare(parser)
    quantization.declare(parser)


def execute(options: argparse.Namespace) -> int:
    """Convert, save, and print the files that were written."""
    dynamic = parse_dynamic(options.dynamic)
    inputs = split_assignments(options.input, "--input")
    options.output = output.chosen_place(options.output)
    if options.record is not None:
        options.record = output.chosen_place(options.record, PROGRAM_SUFFIX)
    bits = quantization.chosen(options)
    with stages_shown():
        begin_stage("import")
        subject = load_subject(options.factory, options.seed)
        if subject.program is None:
            program = _convert_module(subject, inputs, dynamic, options)
        else:
            program = _convert_program(subject.program, options)
        if bits is not None:
            if not options.no_optimize:
                program.optimize()  # passes for a target may merge layers that rules name
            program.quantize(**bits)
            quantization.print_reports(program, layers=options.layers)
        if not options.no_optimize:
            output.optimize(program, options)
        print(program)
        if program.recognized is not None:
            print(f"\n{program.recognized}")
        print()
        output.save(program, options)
        if options.record is not None:
            print(f"wrote {printable(str(program.record().save(options.record)))}")
    return 0


def _convert_module(
    subject: Subject,
    inputs: dict[str, str],
    dynamic: dict[str, tuple[DynamicDim, ...]],
    options: argparse.Namespace,
) -> OnnxProgram:
    from coreai_onnx.conversion import convert

    kwargs = subject.kwargs | _example_inputs(inputs)
    check_arguments(subject, kwargs)
    shapes = dynamic_shapes(subject, kwargs, dynamic) if dynamic else subject.dynamic_shapes
    return convert(
        subject.module,
        subject.args,
        kwargs,
        dynamic_shapes=shapes,
        externalize_modules=_externalized(options.externalize) or None,
        opset_version=chosen_opset(options.opset, options.minimum_onnxruntime, options.target),
        minimum_onnxruntime=options.minimum_onnxruntime,
        # `execute` runs the passes after the quantization, and prints their report.
        optimize=False,
    )


def _convert_program(program: ExportedProgram, options: argparse.Namespace) -> OnnxProgram:
    from coreai_onnx.converter import TorchConverter

    of_modules = {"dynamic": options.dynamic, "input": options.input}
    of_modules["externalize"] = options.externalize
    for name, words in of_modules.items():
        if words:
            raise CommandError(
                f"--{name} is for modules: {options.factory} was exported with its inputs and dims"
            )
    return (
        TorchConverter()
        .add_exported_program(program)
        .to_onnx(
            opset_version=chosen_opset(options.opset, options.minimum_onnxruntime, options.target),
            minimum_onnxruntime=options.minimum_onnxruntime,
        )
    )


def check_arguments(subject: Subject, kwargs: dict[str, Any]) -> None:
    """Check that a module's forward() takes the arguments.

    Raises:
        CommandError: If a keyword is unknown or given twice, there are too many arguments, or one
            is missing.
    """
    signature = inspect.signature(subject.module.forward)
    parameters = signature.parameters.values()
    names = [p.name for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    takes = f"forward() takes {', '.join(names) or 'no inputs'}"
    try:
        # Partial, because the other arguments are given by name.
        positional = signature.bind_partial(*subject.args).arguments
    except TypeError as error:
        raise CommandError(f"{len(subject.args)} positional arguments; {takes}") from error
    open_ended = any(p.kind is p.VAR_KEYWORD for p in parameters)
    for name in kwargs:
        if name in positional:
            raise CommandError(f"input {name!r} is given twice, by position and by name; {takes}")
        if name not in names and not open_ended:
            raise CommandError(f"unknown input {name!r}; {takes}")
    required = [p.name for p in parameters if p.name in names and p.default is p.empty]
    missing = [name for name in required if name not in {*positional, *kwargs}]
    if missing:
        raise CommandError(
            f"missing input {missing[0]!r}; {takes}\n"
            f"  return it from the factory, or give --input {missing[0]}=float32[2,8]"
        )


def dynamic_shapes(
    subject: Subject, kwargs: dict[str, Any], dynamic: dict[str, tuple[DynamicDim, ...]]
) -> dict[str, Any]:
    """Return ``dynamic_shapes`` for ``torch.export``, by parameter name.

    Raises:
        CommandError: If an input is unknown, the factory returned dynamic shapes, or
            ``torch.export`` cannot make arguments of this kind dynamic.
    """
    if subject.dynamic_shapes is not None:
        raise CommandError("the factory already returns dynamic_shapes; omit --dynamic")
    signature = inspect.signature(subject.module.forward)
    bound = signature.bind(*subject.args, **kwargs).arguments
    dims = _Dims()
    shapes: dict[str, Any] = {}
    left, inputs = dict(dynamic), list[str]()
    for name, value in bound.items():
        if signature.parameters[name].kind is inspect.Parameter.VAR_KEYWORD:
            raise CommandError(
                "torch.export does not support dynamic dims of inputs that forward() takes as "
                f"**{name}: {', '.join(value)}\n"
                "  wrap the module in one whose forward() names its inputs"
            )
        if signature.parameters[name].kind is inspect.Parameter.VAR_POSITIONAL:
            # torch.export takes the dims of `*args` as one tuple, the option by `args.0`, `args.1`.
            names = [f"{name}.{i}" for i in range(len(value))]
            shapes[name] = tuple(
                dims.of(one, part, left.pop(one, ()))
                for one, part in zip(names, value, strict=True)
            )
            inputs += names
        else:
            shapes[name] = dims.of(name, value, left.pop(name, ()))
            inputs.append(name)
    if left:
        raise CommandError(
            f"--dynamic {next(iter(left))}: no such input; "
            f"forward() takes {', '.join(inputs) or 'none'}"
        )
    return shapes


class _Dims:
    """``torch.export.Dim`` objects by name: a name is the same dim everywhere."""

    def __init__(self) -> None:
        self._made: dict[str, tuple[DynamicDim, Any]] = {}

    def of(self, name: str, value: Any, dims: Iterable[DynamicDim]) -> dict[int, Any] | None:
        """Return the dynamic dims of an input; None if it has none."""
        for dim in dims:
            _check_axis(name, value, dim)
        return {dim.axis: self._dim(dim) for dim in dims} or None

    def _dim(self, dim: DynamicDim) -> Any:
        from torch.export import Dim

        first, torch_dim = self._made.get(dim.name, (dim, None))
        if torch_dim is None:
            bounds = {"min": dim.min, "max": dim.max}
            torch_dim = Dim(
                dim.name, **{key: bound for key, bound in bounds.items() if bound is not None}
            )
            self._made[dim.name] = (dim, torch_dim)
        # The bounds of a dim may be given once and left out elsewhere.
        elif (dim.min, dim.max) not in ((None, None), (first.min, first.max)):
            raise CommandError(f"--dynamic: {dim.name} has two different bounds")
        return torch_dim


def _check_axis(name: str, value: Any, dim: DynamicDim) -> None:
    import torch

    option = f"--dynamic {name}:{dim.axis}={dim.name}"
    if not isinstance(value, torch.Tensor):
        raise CommandError(
            f"{option}: the input is of type {type(value).__name__}, not a tensor\n"
            "  return dynamic_shapes from the factory for inputs that hold several tensors"
        )
    if dim.axis >= value.dim():
        axes = f"the axes 0 to {value.dim() - 1}" if value.dim() else "no axes"
        raise CommandError(f"{option}: the input has {axes}, its shape is {list(value.shape)}")
    size, low = value.shape[dim.axis], dim.min or 0
    if size < low or (dim.max is not None and size > dim.max):
        raise CommandError(f"{option}: the example has {size} there, outside of the dim's bounds")


def _example_inputs(texts: dict[str, str]) -> dict[str, Any]:
    import torch

    rng = np.random.default_rng(0)
    inputs: dict[str, Any] = {}
    for name, text in texts.items():
        tensor = _tensor(name, read_tensor(text, rng))
        # numpy has no complex32: the array is complex64.
        inputs[name] = tensor.to(torch.complex32) if text.startswith("complex32") else tensor
    return inputs


def _tensor(name: str, array: Array) -> torch.Tensor:
    import torch

    # torch refuses arrays of the other byte order.
    array = array.astype(array.dtype.newbyteorder("="), copy=False)
    dtype = getattr(torch, array.dtype.name, None)
    if not isinstance(dtype, torch.dtype):
        raise CommandError(f"--input {name}: torch has no dtype {array.dtype.name}")
    if array.dtype.isbuiltin == 1:
        return torch.from_numpy(array)
    return torch.from_numpy(array.view(f"uint{8 * array.itemsize}")).view(dtype)  # bfloat16, float8


def _externalized(texts: list[str]) -> list[Any]:
    import torch

    from coreai_onnx.export.externalize.specs import ExternalizeSpec

    specs: list[Any] = []
    for text in texts:
        if text == "auto":
            specs.append(text)
            continue
        where, equals, name = text.partition("=")
        if equals and not name:
            raise CommandError(f"--externalize {text}: the name of the composite is missing")
        target = load_object(where)
        if not (isinstance(target, type) and issubclass(target, torch.nn.Module)):
            raise CommandError(f"--externalize {where}: it is not a class of torch modules")
        try:
            specs.append(ExternalizeSpec(target, composite_op_name=name or None))
        except ValueError as error:
            raise CommandError(f"--externalize {text}: {error}") from error
    return specs
