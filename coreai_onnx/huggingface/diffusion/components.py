"""The modules of a pipeline as parts to export, each with the names and dims of optimum."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
import transformers
from torch.export import Dim

from coreai_onnx.errors import ConversionError, ModelSourceError
from coreai_onnx.huggingface.diffusion.recording import DECODE, ENCODE, Call, bound
from coreai_onnx.huggingface.diffusion.whole import counted_layers, one_trace
from coreai_onnx.huggingface.verification import difference
from coreai_onnx.program import OnnxProgram
from coreai_onnx.runtime.sessions.session import Session

_METHODS = {ENCODE: "encode", DECODE: "decode"}
_MAIN = {ENCODE: "sample", DECODE: "latent_sample"}
_PREFIXES = {ENCODE: "sample_", DECODE: "latent_"}
_DIMS = {
    "batch": "batch_size",
    "height": "height",
    "width": "width",
    "sequence": "sequence_length",
    "frames": "num_frames",
}
_PACKED = "packed_height_width"


class Component(torch.nn.Module):
    """A module of a pipeline, called as the pipeline calls it.

    Attributes:
        input_names: Names of the inputs: parameters of the module, and keys of those that are
            mappings of tensors.
        output_names: Names of the outputs.
        slots: The tensors of a cache: none.
    """

    slots = ()

    def __init__(self, name: str, module: torch.nn.Module, calls: Mapping[str, Call]) -> None:
        """Find out the inputs, which of their dims are dynamic, and the outputs.

        Args:
            name: The name of the folder, such as ``"unet"`` or ``"vae_decoder"``.
            module: The module, for ``vae_decoder`` and ``vae_encoder`` the whole autoencoder.
            calls: The calls of `record`.

        Raises:
            ModelSourceError: If an argument is neither a tensor nor the same in every call, or if
                a loop of the module depends on a size.
        """
        super().__init__()
        self.name = name
        self._method = _METHODS.get(name, "forward")
        self._calls = {size: _Arguments(name, call) for size, call in calls.items()}
        self._base = self._calls[""]
        self.module: Any = _as_called(module, self._base.values()[0]) if name in _MAIN else module
        title = f"{name} ({type(module).__name__})"
        for call in self._calls.values():
            call.check_constants(self._base, title)
        self.input_names = list(self._base.tensors)
        results = self._check_layers(title)
        self.output_names = list(results)
        self._result_shape = results[self.output_names[0]].shape

    def forward(self, inputs: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        """Return the outputs for the inputs in the order of their names."""
        with one_trace(self.module):
            return tuple(self._results(inputs).values())

    def example(self, dtype: torch.dtype) -> tuple[Any, ...]:
        """Return the recorded arguments, whatever the dtype."""
        del dtype
        return (self._base.values(),)

    def dynamic_shapes(self) -> tuple[Any, ...]:
        """Return the dims that differed in another run."""
        sizes: dict[str, int] = {}
        dims = [self._dims_of(name, sizes) for name in self.input_names]
        limits = self._limits(dims)
        return ([{axis: limits.get(dim, dim) for axis, dim in x.items()} for x in dims],)

    def check(self, program: OnnxProgram) -> None:
        """Compare the program with torch at the sizes of the other runs.

        Raises:
            ConversionError: If an output differs.
        """
        session = Session(program, prepack=False)  # the weights stay in a mapped file
        for size, inputs, name, actual, expected in self.results(session):
            error, limit = difference(actual, expected)
            if not error <= limit:  # NaN must fail as well
                shapes = ", ".join(f"{n} {[*x.shape]}" for n, x in inputs.items())
                raise ConversionError(
                    f"the exported {self.name} differs from torch: {name} by {error:.3g} for "
                    f"{shapes} (another {size or 'seed'})",
                    advice="export it with check=False to look into it, and please report the "
                    "model",
                )

    def results(self, session: Session) -> Iterator[tuple[str, dict[str, Any], str, Any, Any]]:
        """Yield the outputs of a session and of torch for the recorded calls.

        Args:
            session: A session of the exported file.

        Yields:
            The size that differs from that of the export, the inputs, the name of an output, its
            value of the session, and that of torch.
        """
        for size, call in self._calls.items():
            with torch.no_grad():
                references = self._results(call.values())
            outputs = session.run(**call.tensors)
            for name, expected in references.items():
                yield size, call.tensors, name, outputs[name], expected

    def _check_layers(self, title: str) -> dict[str, torch.Tensor]:
        """Check that each run calls the same number of layers; return the results of the first.

        Raises:
            ModelSourceError: If a run calls more or fewer: a trace holds as many as it has seen.
        """
        results, counts = {}, {}
        for size, call in self._calls.items():
            with torch.no_grad(), one_trace(self.module), counted_layers(self.module) as count:
                results[size] = self._results(call.values())
            counts[size] = next(count)
            if counts[size] != counts[""]:
                raise ModelSourceError(
                    f"{title} is not exported: it calls {counts['']} layers, and {counts[size]} "
                    f"for another {size}, so that one file could not hold both"
                )
        return results[""]

    def _limits(self, dims: Sequence[Mapping[int, str]]) -> dict[str, Any]:
        """Return the dims with limits that are known: without them, torch exports twice."""
        positions = getattr(self.module.config, "max_position_embeddings", None)
        limits = {"sequence_length": Dim("sequence_length", max=positions)} if positions else {}
        if self.name == ENCODE:
            shape = self._base.values()[0].shape
            # At least two latents in each direction; the first one of a video is of one frame.
            for axis, dim in dims[0].items():
                if axis > 1:
                    alone = 1 if len(shape) == 5 and axis == 2 else 0
                    factor = (shape[axis] - alone) // (self._result_shape[axis] - alone)
                    limits[dim] = Dim(dim, min=alone + (2 - alone) * factor)
        return limits

    def _results(self, inputs: Sequence[torch.Tensor]) -> dict[str, torch.Tensor]:
        """Return the tensors of the module's result by name."""
        function = getattr(self.module, self._method)
        result = function(**self._base.with_tensors(inputs), return_dict=True)
        if self.name == ENCODE:
            # The distribution, not a sample of it, as optimum has it.
            if hasattr(result, "latent_dist"):
                return {"latent_parameters": result.latent_dist.parameters}
            return {"latent_sample": result[0]}
        tensors = {}
        for name, value in result.items():
            if isinstance(value, torch.Tensor):
                tensors[name] = value
            elif value is not None:
                tensors |= {f"{name}.{i}": x for i, x in enumerate(value)}
        if self.name == DECODE or isinstance(self.module, transformers.PreTrainedModel):
            return tensors
        # The result of a denoiser has the shape of its first input.
        first, *others = tensors
        main = f"out_{next(iter(self._base.tensors))}"
        return {main: tensors[first], **{name: tensors[name] for name in others}}

    def _dims_of(self, name: str, sizes: dict[str, int]) -> dict[int, str]:
        """Return the dynamic dims of an input.

        Args:
            name: Its name.
            sizes: The sizes of the dims that there are already.
        """
        dims = {}
        shape = self._base.tensors[name].shape
        for axis, size in enumerate(shape):
            changed = [
                other
                for other, call in self._calls.items()
                if call.tensors[name].shape[axis] != size
            ]
            if not changed:
                continue
            dim = _PACKED if changed == ["height", "width"] else _DIMS[changed[0]]
            if dim not in ("batch_size", "sequence_length"):
                dim = _PREFIXES.get(self.name, "") + dim
            # Two inputs may have lengths of their own, such as the texts of two encoders.
            if sizes.setdefault(dim, size) != size:
                sizes[dim := f"{name}_{dim}"] = size
            dims[axis] = dim
        return dims


def _as_called(autoencoder: Any, argument: torch.Tensor) -> Any:
    """Return an autoencoder in the dtype of its argument.

    In float16, the autoencoder of Stable Diffusion XL overflows: its pipeline widens it for a run.
    """
    same = autoencoder.dtype == argument.dtype
    return autoencoder if same else copy.deepcopy(autoencoder).to(argument.dtype)


class _Arguments:
    """The arguments of a call: tensors by name, and others, which the file holds.

    Attributes:
        tensors: The tensors by the names of the inputs.
    """

    def __init__(self, component: str, call: Call) -> None:
        self.tensors: dict[str, torch.Tensor] = {}
        self._constants: dict[str, Any] = {}
        self._places: list[tuple[str, str]] = []
        for name, value in call.items():
            inner = value if isinstance(value, Mapping) and value else {name: value}
            for key, item in inner.items():
                if not isinstance(item, torch.Tensor):
                    self._constants[name] = value
                    continue
                first = not self.tensors and component in _MAIN
                self.tensors[_MAIN[component] if first else key] = item.detach().clone()
                self._places.append((name, key if isinstance(value, Mapping) else ""))
        for name in ("return_dict", "generator"):
            self._constants.pop(name, None)

    def values(self) -> list[torch.Tensor]:
        return list(self.tensors.values())

    def with_tensors(self, tensors: Sequence[torch.Tensor]) -> dict[str, Any]:
        """Return the arguments with other tensors."""
        arguments: dict[str, Any] = dict(self._constants)
        for (name, key), tensor in zip(self._places, tensors, strict=True):
            if key:
                arguments.setdefault(name, {})[key] = tensor
            else:
                arguments[name] = tensor
        return arguments

    def check_constants(self, base: _Arguments, component: str) -> None:
        """Check that what is not a tensor does not depend on the sizes.

        Raises:
            ModelSourceError: If an argument differs, or is a list of tensors.
        """
        if list(self.tensors) != list(base.tensors):
            raise ModelSourceError(f"{component} takes other tensors for another batch or size")
        for name, value in self._constants.items():
            several = value if isinstance(value, list | tuple) else [value]
            plain = all(isinstance(x, bool | int | float | str | Mapping) for x in several)
            if not plain or value != base._constants.get(name):
                raise ModelSourceError(
                    f"{component} is not exported: its {name} is not a tensor "
                    f"({value!r:.40}), so that a file could not change it"
                )


def bound_inputs(component: str, function: Any, args: Any, kwargs: Any) -> dict[str, torch.Tensor]:
    """Return the inputs of a file for a call of the module that it was exported from."""
    return _Arguments(component, bound(function, *args, **kwargs)).tensors
