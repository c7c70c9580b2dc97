"""The torch module that a command works on, and its example inputs."""

from __future__ import annotations

import importlib
import importlib.util
import logging
import random
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from coreai_onnx.errors import CommandError
from coreai_onnx.model.files.new_files import file_fault

if TYPE_CHECKING:
    import torch
    from torch.export import ExportedProgram

    from coreai_onnx.export.record import ExportRecord

FACTORY_HELP = """\
FACTORY is pkg.module:name or path/to/file.py:name, or a .pt2 file of torch.export.save. Such a
file is an exported program with its example inputs. The name is that of a module, or of a function
without parameters that returns one of
  module                                    for a forward() without arguments, or with --input
  (module, args)                            args: a tuple of positional arguments,
                                                  or a dict of keyword arguments
  (module, args, kwargs)
  (module, args, kwargs, dynamic_shapes)    as torch.export.export takes them
The module is used in the mode it is in: call .eval() unless you want training behavior. Random
weights and inputs are those of --seed."""
PROGRAM_SUFFIX = ".pt2"


@dataclass(frozen=True)
class Subject:
    """The result of a factory.

    Attributes:
        module: The module.
        args: Positional example arguments.
        kwargs: Keyword example arguments.
        dynamic_shapes: As ``torch.export.export`` takes them, or None.
        program: The program in a ``.pt2`` file, from which ``module`` is made. None for a factory.
    """

    module: torch.nn.Module
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)
    dynamic_shapes: Any = None
    program: ExportedProgram | None = None


def load_subject(factory: str, seed: int = 0) -> Subject:
    """Import a factory and call it, or load a ``.pt2`` file.

    Args:
        factory: ``pkg.module:name``, ``path/to/file.py:name`` or ``path/to/file.pt2``.
        seed: Seed of the random numbers of Python, numpy and torch while the factory is imported,
            and again when it is called.

    Raises:
        CommandError: If it cannot be imported or loaded, raises, or returns something else.
    """
    import torch

    if factory.endswith(PROGRAM_SUFFIX):
        return _exported(Path(factory))
    _start_random_numbers(seed)
    target = load_object(factory)
    if not isinstance(target, torch.nn.Module):
        if not callable(target):
            raise CommandError(f"{factory} is a {type(target).__name__}, not a function or module")
        # Again: an import, which may draw numbers too, runs the file the first time only.
        _start_random_numbers(seed)
        try:
            target = target()
        except (Exception, SystemExit) as error:
            raise CommandError(f"{factory}() raised {type(error).__name__}: {error}") from error
    return _subject(target, factory)


def load_record(path: str) -> ExportRecord:
    """Read a record of a conversion, with its example inputs.

    Raises:
        LoadError: If the file is missing or is not a record.
        CommandError: If it holds no example inputs.
    """
    from coreai_onnx.export.record import ExportRecord

    record = ExportRecord.load(path)
    if record.example is None:
        raise CommandError(f"{path} holds no example inputs to run")
    return record


def _start_random_numbers(seed: int) -> None:
    import torch

    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002 - what a factory draws from without a generator
    torch.manual_seed(seed)


def _exported(path: Path) -> Subject:
    import torch

    if fault := file_fault(path):
        raise CommandError(f"{path}: {fault}")
    try:
        with _without_log("torch.export"):
            program = torch.export.load(path)
        module = program.module()
    except Exception as error:  # errors of zip, pickle, JSON and torch
        reason = str(error).partition("\n")[0]
        raise CommandError(
            f"{path}: is not a file of torch.export.save: {type(error).__name__}: {reason}"
        ) from error
    args, kwargs = program.example_inputs or ((), {})
    return Subject(module, tuple(args), dict(kwargs), program=program)


@contextmanager
def _without_log(name: str) -> Iterator[None]:
    """While active, suppress a library's log: its errors are raised and reported here."""
    logger = logging.getLogger(name)
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(level)


def load_object(where: str) -> Any:
    """Import ``pkg.module:name`` or ``path/to/file.py:name``; the current folder is searched too.

    Raises:
        CommandError: If the text has another form, or the import fails.
    """
    place, colon, name = where.rpartition(":")
    if not (colon and place and name):
        raise CommandError(f"{where!r} is not of the form pkg.module:name or path/to/file.py:name")
    try:
        module = _file_module(Path(place)) if place.endswith(".py") else _named_module(place)
    # A script may end with sys.exit().
    except (Exception, SystemExit) as error:
        raise CommandError(f"cannot import {place}: {type(error).__name__}: {error}") from error
    value: Any = module
    for part in name.split("."):
        if not hasattr(value, part):
            raise CommandError(f"{place} has no {name!r}")
        value = getattr(value, part)
    return value


def _named_module(name: str) -> ModuleType:
    folder = str(Path.cwd())
    # `python -m coreai_onnx` searches the current folder, the script `coreai-onnx` does not.
    if folder not in sys.path:
        sys.path.insert(0, folder)
    return importlib.import_module(name)


def _file_module(path: Path) -> ModuleType:
    if not path.is_file():
        raise FileNotFoundError(f"no such file: {path}")
    there = sys.modules.get(path.stem)
    if (
        there is not None
        and Path(getattr(there, "__file__", None) or "").resolve() == path.resolve()
    ):
        return there  # a class that two options name is imported once
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module  # dataclasses and torch.export look up the module
    spec.loader.exec_module(module)
    return module


def _subject(result: object, factory: str) -> Subject:
    import torch

    parts = result if isinstance(result, tuple) else (result,)
    if not 1 <= len(parts) <= 4 or not isinstance(parts[0], torch.nn.Module):
        kinds = ", ".join(type(part).__name__ for part in parts)
        raise CommandError(f"{factory} returned ({kinds}), not a module\n{FACTORY_HELP}")
    args = parts[1] if len(parts) > 1 else ()
    kwargs = parts[2] if len(parts) > 2 and parts[2] is not None else {}
    if isinstance(args, Mapping) and len(parts) == 2:
        args, kwargs = (), args
    if isinstance(args, torch.Tensor):
        args = (args,)
    if not isinstance(args, tuple | list) or not isinstance(kwargs, Mapping):
        raise CommandError(
            f"{factory} returned args of type {type(args).__name__} and kwargs of type "
            f"{type(kwargs).__name__}; a tuple and a dict are expected"
        )
    return Subject(parts[0], tuple(args), dict(kwargs), parts[3] if len(parts) > 3 else None)
