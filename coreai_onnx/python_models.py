"""Models as Python source: exported from PyTorch in one call, and read again."""

from __future__ import annotations

import re
from collections.abc import Callable
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import torch

from coreai_onnx.conversion import convert
from coreai_onnx.errors import InputError
from coreai_onnx.model.interface import interface
from coreai_onnx.program import OnnxProgram

_NAME = re.compile(r"[^\W\d]\w*")


class ExportedModel:
    """A model as Python source, which can also be run as it is.

    ```python
    kernel = coreai_onnx.export_python(rms_norm, (x, weight))
    Path("my_kernel.py").write_text(kernel.source)  # from my_kernel import call
    y = kernel.run(x, weight)
    ```

    Attributes:
        program: The converted program.
    """

    def __init__(self, program: OnnxProgram) -> None:
        """Hold a program with one entrypoint."""
        self.program = program
        self._source = ""

    @property
    def source(self) -> str:
        """One Python file with a function ``call(...)``.

        It needs onnxscript, onnx, numpy and, to run, onnxruntime. Weights of more than a few
        elements are not in it: `save` writes them beside it.

        Raises:
            SaveError: If the model has what Python source cannot express.
        """
        if not self._source:
            from coreai_onnx.source.single_file import single_file

            self._source = single_file(self.program.model)[0]
        return self._source

    def save(self, path: str | PathLike[str]) -> None:
        """Write `source` to a file, and the weights beside it as ``weights.safetensors``.

        Raises:
            SaveError: If a file cannot be written.
        """
        from coreai_onnx.source.single_file import write_file

        write_file(self.program.model, Path(path))

    def run(self, *args: Any) -> Any:
        """Run the model with the arguments of the exported function.

        Args:
            *args: Tensors or arrays.

        Returns:
            The output, or a tuple of them; torch tensors if the arguments are.

        Raises:
            InputError: If an argument has another dtype, rank or shape.
        """
        return self.boxed_run(list(args))

    def boxed_run(self, args: list[Any]) -> Any:
        """Run the model and consume the list of arguments: it is empty afterwards.

        A tensor that only the list refers to is freed as soon as the run is over.

        Args:
            args: Tensors or arrays.

        Returns:
            As `run`.

        Raises:
            InputError: As `run`, and if ``args`` is not a list.
        """
        if not isinstance(args, list):
            raise InputError(
                f"boxed_run takes a list, which it empties, not a {type(args).__name__}\n"
                "  call run(*args), or boxed_run(list(args))"
            )
        given = tuple(args)
        args.clear()
        as_torch = any(isinstance(item, torch.Tensor) for item in given)
        outputs = [_tensor(item) if as_torch else item for item in self.program.run(*given)]
        return outputs[0] if len(outputs) == 1 else tuple(outputs)

    @property
    def dynamic_shape_names(self) -> list[str]:
        """The symbolic dims of the inputs, ``["B", "T"]``, in order of appearance."""
        dims = [dim for info in interface(self.program.model).inputs for dim in info.dims]
        names = [dim for dim in dims if isinstance(dim, str) and _NAME.fullmatch(dim)]
        return list(dict.fromkeys(names))

    @property
    def tensor_arg_count(self) -> int:
        """Number of tensors that the model takes."""
        return len(interface(self.program.model).inputs)


def _tensor(array: np.ndarray[Any, Any]) -> torch.Tensor:
    if array.dtype.isbuiltin == 1:
        return torch.from_numpy(array)
    dtype: torch.dtype = getattr(torch, array.dtype.name)
    return torch.from_numpy(array.view(f"uint{8 * array.itemsize}")).view(dtype)


def export_python(
    fn_or_module: Callable[..., Any], args: Any, *, dynamic_shapes: Any = None
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


def from_python(folder: str | PathLike[str]) -> OnnxProgram:
    """Build the model of a package that `OnnxProgram.to_python` wrote, edited or not.

    The package is imported, which runs its Python: do this only with packages that you trust.

    Raises:
        LoadError: If the folder is no such package, or its Python is wrong; names the line.
    """
    from coreai_onnx.source.package import read_package

    return OnnxProgram(read_package(Path(folder)))


def from_text(text: str) -> OnnxProgram:
    """Return the program of a text that `OnnxProgram.to_text` returned; its weights have no data.

    The Python in the text is run: do this only with texts that you trust.

    Raises:
        LoadError: If it is no such text, or its Python is wrong; names the line.
    """
    from coreai_onnx.source.text import from_text as read

    return OnnxProgram({"main": read(text)})
