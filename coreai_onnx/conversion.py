"""Conversion in one call, to a program or to Python source, which is read again."""

from __future__ import annotations

import dataclasses
import re
from collections import OrderedDict, defaultdict, deque, namedtuple
from collections.abc import Callable, Iterator, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import ConstantArgument, InputKind

from coreai_onnx.converter import Targets, TorchConverter
from coreai_onnx.errors import InputError, LoadError
from coreai_onnx.export.capture.arguments import as_arguments, separated
from coreai_onnx.export.capture.exported import refuse_arguments, refuse_options
from coreai_onnx.export.compat.torch_names import pytree
from coreai_onnx.export.torch_export import TorchExport, with_named_dims
from coreai_onnx.model.interface import ModelInterface, interface
from coreai_onnx.program import OnnxProgram

# Dims that are computed from others, `2*T`, have no name of their own.
_NAME = re.compile(r"[^\W\d]\w*")
DynamicShapes = Mapping[str, Any] | Sequence[Any] | None
"""Dims that may vary, as ``torch.export.export`` takes them."""


def convert(
    module: torch.nn.Module | Callable[..., Any] | ExportedProgram,
    args: Any = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    dynamic_shapes: Any = None,
    strict: bool = False,
    prefer_deferred_runtime_asserts_over_guards: bool = False,
    externalize_modules: Targets = None,
    opset_version: int | None = None,
    minimum_onnxruntime: str | None = None,
    optimize: bool = True,
) -> OnnxProgram:
    """Export, convert and optimize a module in one call.

    Args:
        module: The module, usually in ``eval()``; a function, lambda, ``functools.partial`` or
            bound method; the result of ``torch.compile`` or ``torch.jit.trace``; or an
            ``ExportedProgram``, which needs no arguments.
        args: Example positional arguments: a tuple, or one tensor; a mapping is taken as keyword
            arguments. The same tensor may be passed for several inputs.
        kwargs: Example keyword arguments.
        dynamic_shapes: As for ``torch.export.export``; a dim may be a string, ``{0: "batch"}``.
        strict: As for ``torch.export.export``.
        prefer_deferred_runtime_asserts_over_guards: As for ``torch.export.export``.
        externalize_modules: As for :meth:`TorchConverter.add_pytorch_module`.
        opset_version: As for :meth:`TorchConverter.to_onnx`.
        minimum_onnxruntime: As for :meth:`TorchConverter.to_onnx`.
        optimize: Whether to run the graph passes.

    Raises:
        StagingError: If ``module`` cannot be exported, or the arguments do not fit it.
        DynamicShapesError: If a dim that was requested as dynamic cannot be dynamic.
        ExportError: If ``torch.export`` cannot export the module.
        ConversionError: If it cannot be expressed in ONNX.

    Warns:
        ExportRetryWarning: If ``torch.export`` failed because of dynamic sizes, and another attempt
            succeeded; see :mod:`coreai_onnx.export.capture.attempts`.
        SpecializationWarning: If torch fixed a dim that may be dynamic (``Dim.AUTO``).
        RandomnessWarning, TrainingModeWarning: As for :meth:`TorchConverter.to_onnx`.
    """
    converter, (positional, named) = TorchConverter(), as_arguments(args, kwargs)
    if isinstance(module, ExportedProgram):
        refuse_options(
            dynamic_shapes=dynamic_shapes,
            strict=strict,
            prefer_deferred_runtime_asserts_over_guards=prefer_deferred_runtime_asserts_over_guards,
            externalize_modules=externalize_modules,
        )
        refuse_arguments(module, positional, named)
        converter.add_exported_program(module)
    else:
        # Copies, because torch.export makes a tensor that is passed twice one input.
        export = TorchExport(
            separated(positional),
            separated(named),
            with_named_dims(dynamic_shapes),
            strict=strict,
            deferred=prefer_deferred_runtime_asserts_over_guards,
        )
        converter.add_pytorch_module(
            module, export_fn=export, externalize_modules=externalize_modules
        )
    program = converter.to_onnx(
        opset_version=opset_version, minimum_onnxruntime=minimum_onnxruntime
    )
    return program.optimize() if optimize else program


class ExportedModel:
    """A model as Python source, which can also be run as it is.

    ```python
    kernel = coreai_onnx.export_python(rms_norm, (x, weight))
    kernel.save("my_kernel.py")  # from my_kernel import call
    y = kernel.run(x, weight)
    ```

    Attributes:
        program: The converted program.
    """

    def __init__(self, program: OnnxProgram, takes: Mapping[str, Any] | None = None) -> None:
        """Hold a program with one entrypoint.

        Args:
            program: The program.
            takes: What each parameter of the function holds; None reads it from the program's
                record.
        """
        self.program = program
        self._source = ""
        self._takes = _parameters_of(program) if takes is None else takes

    @property
    def source(self) -> str:
        """One Python file with a function ``call(...)``.

        It needs onnxscript, onnx, numpy and, to run, onnxruntime. Its last lines hold the weights
        if they take up to 1 MiB; larger ones are not in it: `save` writes them beside it.

        Raises:
            SaveError: If the model has what Python source cannot express.
        """
        if not self._source:
            from coreai_onnx.model.python.single_file import with_weights

            self._source = with_weights(self.program.model, self._takes)
        return self._source

    def save(self, path: str | PathLike[str]) -> None:
        """Write `source` to a file ``name.py``, and the weights beside it to ``name.safetensors``.

        Raises:
            SaveError: If a file cannot be written, or does not end in ``.py``.
        """
        from coreai_onnx.model.python.single_file import write_file

        write_file(self.program.model, Path(path), self._takes)

    def run(self, *args: Any, **kwargs: Any) -> Any:
        """Run the model with the arguments of the exported function.

        Args:
            *args: Tensors or arrays, in the structure of the example arguments. A number or text
                that the export made a part of the model may be omitted.
            **kwargs: Arguments by name.

        Returns:
            The output, or a tuple of them; torch tensors if an argument is one.

        Raises:
            InputError: If an argument is missing or unknown, or has another structure, dtype, rank
                or shape.
        """
        return self._run(list(args), kwargs)

    def boxed_run(self, args: list[Any]) -> Any:
        """Run the model and consume the list of arguments: it is empty afterwards.

        A tensor that only the list refers to is freed as soon as the run is over.

        Args:
            args: Tensors or arrays.

        Returns:
            As `run`.

        Raises:
            InputError: If ``args`` is not a list, or as for `run`.
        """
        if not isinstance(args, list):
            raise InputError(
                f"boxed_run takes a list, which it empties, not a {type(args).__name__}: "
                "pass list(args), or call run(*args)"
            )
        return self._run(args, {})

    def _run(self, args: list[Any], kwargs: Mapping[str, Any]) -> Any:
        from coreai_onnx.model.python.builder import arguments, errors, values

        takes = self._takes
        if takes is None:
            takes = {info.name: info.name for info in self._interface.inputs}
        states = [info.name for info in self._interface.states]
        try:
            feeds = arguments.flattened(takes, args, kwargs, states)
        except errors.CallError as error:
            raise InputError(str(error)) from None
        is_torch = any(isinstance(item, torch.Tensor) for item in feeds.values())
        inputs = [feeds.pop(info.name) for info in self._interface.inputs]
        outputs: list[Any] = list(self.program.run(*inputs, **feeds))
        # Only after the run, so that a call that fails leaves the list as it was.
        args.clear()
        if is_torch:
            kinds = [info.dtype for info in self._interface.outputs]
            outputs = [values.to_torch(*pair) for pair in zip(outputs, kinds, strict=True)]
        return outputs[0] if len(outputs) == 1 else tuple(outputs)

    @property
    def _interface(self) -> ModelInterface:
        return interface(self.program.model)

    @property
    def dynamic_shape_names(self) -> list[str]:
        """The symbolic dims of the inputs, ``["B", "T"]``, in order of appearance."""
        dims = [dim for info in self._interface.inputs for dim in info.dims]
        names = [dim for dim in dims if isinstance(dim, str) and _NAME.fullmatch(dim)]
        return list(dict.fromkeys(names))

    @property
    def tensor_arg_count(self) -> int:
        """Number of tensors that the model takes."""
        return len(self._interface.inputs)


ExportedKernel = ExportedModel


def _parameters_of(program: OnnxProgram) -> dict[str, Any] | None:
    """Return what each parameter of the exported function holds; None for one tensor each.

    Returns:
        Parameter to the name of an input, a `Fixed` value, or a list, a dict or `Fields` of them.
    """
    # A program from a file or from source has no record.
    takes = _parameters(program.record().program) if program.records else None
    names = [info.name for info in interface(program.model).inputs]
    if takes is None or list(_inputs_in(takes)) != names or list(takes) == names:
        return None
    return takes


def _parameters(program: ExportedProgram) -> dict[str, Any] | None:
    from coreai_onnx.model.python.builder import Fixed

    call = program.module_call_graph[0].signature
    tree = program.call_spec.in_spec
    if call is None or tree is None or call.forward_arg_names is None:
        return None
    specs = program.graph_signature.input_specs
    arguments = [spec.arg for spec in specs if spec.kind == InputKind.USER_INPUT]
    leaves = iter(
        Fixed(item.value) if isinstance(item, ConstantArgument) else item.name for item in arguments
    )
    children = [child for half in tree.children() for child in half.children()]
    try:
        items = [_template(child, leaves) for child in children]
        return dict(zip(call.forward_arg_names, items, strict=True))
    # Without a description, the call takes a tensor for each input, by its name.
    except (TypeError, ValueError):
        return None


def _template(tree: pytree.TreeSpec, leaves: Iterator[Any]) -> Any:
    """Return the part of the arguments that a tree describes.

    Raises:
        TypeError: If a container is neither a list, tuple, dict or dataclass.
    """
    from coreai_onnx.model.python.builder import Fields

    if tree.is_leaf():
        return next(leaves)
    items = [_template(child, leaves) for child in tree.children()]
    kind = tree.type
    if kind in (list, tuple, deque, namedtuple):  # noqa: PYI024 - what torch calls the kind
        return items
    if kind in (dict, OrderedDict, defaultdict):
        # torch puts the factory of a defaultdict before its keys.
        keys = tree.context[1] if kind is defaultdict else tree.context
        return dict(zip(keys, items, strict=True))
    if dataclasses.is_dataclass(kind):
        return Fields(**dict(zip(tree.context[0], items, strict=True)))
    raise TypeError(f"{kind} is not a container of a saved call")


def _inputs_in(item: Any) -> Iterator[str]:
    """Yield the names of the inputs in a part of the arguments, in order."""
    from coreai_onnx.model.python.builder import Fields

    if isinstance(item, str):
        yield item
    elif isinstance(item, Fields | Mapping):
        for inner in (item.items if isinstance(item, Fields) else item).values():
            yield from _inputs_in(inner)
    elif isinstance(item, list):
        for inner in item:
            yield from _inputs_in(inner)


def export_python(
    fn_or_module: Callable[..., Any], args: Any, *, dynamic_shapes: DynamicShapes = None
) -> ExportedModel:
    """Export a function or module as Python source.

    Args:
        fn_or_module: A function, or a module, usually in ``eval()``.
        args: Example arguments.
        dynamic_shapes: As for ``torch.export.export``.

    Raises:
        StagingError, ExportError, ConversionError: As for :func:`convert`.
    """
    return ExportedModel(convert(fn_or_module, args, dynamic_shapes=dynamic_shapes))


torch_export_python = export_python


def export_and_codegen(
    fn_or_module: Callable[..., Any], args: Any, *, dynamic_shapes: DynamicShapes = None
) -> str:
    """Return the source of a function or module before the graph passes, for `postprocess`.

    Args:
        fn_or_module: A function, or a module, usually in ``eval()``.
        args: Example arguments.
        dynamic_shapes: As for ``torch.export.export``.

    Raises:
        StagingError, ExportError, ConversionError: As for :func:`convert`.
    """
    program = convert(fn_or_module, args, dynamic_shapes=dynamic_shapes, optimize=False)
    return ExportedModel(program).source


def postprocess(
    raw_src: str,
    *,
    dynamic_shape_names: Sequence[str] | None = None,
    tensor_arg_count: int = 0,
) -> ExportedModel:
    """Build the model of a source, which runs its Python, and run the graph passes on it.

    Args:
        raw_src: What `export_and_codegen` returned, edited or not.
        dynamic_shape_names: The symbolic dims that the model must have; None checks nothing.
        tensor_arg_count: The number of tensors that the model must take; 0 checks nothing.

    Raises:
        LoadError: If the source is wrong, needs weights that are not in it, or has other
            dims or another number of tensors.
    """
    from coreai_onnx.model.python.single_file import read_source

    model, takes = read_source(raw_src)
    kernel = ExportedModel(OnnxProgram({"main": model}).optimize(), takes)
    names, count = kernel.dynamic_shape_names, kernel.tensor_arg_count
    if dynamic_shape_names is not None and list(dynamic_shape_names) != names:
        raise LoadError(f"the source has the dims {names}, not {list(dynamic_shape_names)}")
    if tensor_arg_count not in (0, count):
        raise LoadError(f"the source takes {count} tensors, not {tensor_arg_count}")
    return kernel


def from_python(folder: str | PathLike[str]) -> OnnxProgram:
    """Build the model of a package that `OnnxProgram.to_python` wrote, edited or not.

    The package is imported, which runs its Python: do this only with packages that you trust.

    Raises:
        LoadError: If to_python did not write the folder, or its Python is invalid; the message
            names the line.
    """
    from coreai_onnx.model.python.package import read_package

    return OnnxProgram(read_package(Path(folder)))


def from_text(text: str) -> OnnxProgram:
    """Return the program of a text that `OnnxProgram.to_text` returned; its weights have no data.

    The Python in the text is run: do this only with texts that you trust.

    Raises:
        LoadError: If it is not such a text, or its Python is wrong; names the line.
    """
    from coreai_onnx.model.python.single_file import from_text as read

    return OnnxProgram({"main": read(text)})
