"""A backend of transformers' exporters (``transformers.exporters``, from 5.23 on).

Importing this module registers the format ``"coreai_onnx"``, which transformers' classes then find:

```python
from transformers.exporters.auto import AutoHfExporter
from transformers.exporters.base import ExportedModel

from coreai_onnx.huggingface.transformers_backend import CoreaiConfig

config = CoreaiConfig(dynamic=True)
exported = AutoHfExporter.from_config(config).export(model, inputs, config)
outputs = exported(**inputs)  # in onnxruntime, on the kernels if they are built
exported.save_pretrained("exported")
exported = ExportedModel.from_pretrained("exported")
```

transformers prepares the model, splits it into the parts of a generation, and exports each part
with ``torch.export``; this package converts, quantizes and runs them.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

import torch

from coreai_onnx.converter import TorchConverter
from coreai_onnx.errors import SpecializationWarning
from coreai_onnx.model.dependencies import imported_from
from coreai_onnx.model.python.builder.values import to_torch
from coreai_onnx.program import OnnxProgram
from coreai_onnx.runtime.sessions.create import session
from coreai_onnx.runtime.sessions.session import Session
from coreai_onnx.targets.opsets import Target, chosen_opset
from coreai_onnx.targets.providers import Choice

with imported_from("transformers", "5.23", "a backend of transformers' exporters"):
    from transformers.exporters.auto import register_backend
    from transformers.exporters.configs import DynamoConfig
    from transformers.exporters.exporter_dynamo import DynamoExporter
    from transformers.exporters.metadata import ExportMetadata, record_output_structure
    from transformers.exporters.quantizers.base import ExportQuantizer
    from transformers.exporters.runners.base import ModelRunner
    from transformers.exporters.utils import (
        disambiguate_io_names,
        onnx_inputs,
        patch_model_outputs,
        quantize_converted_model,
    )

FORMAT = "coreai_onnx"
"""The name of the format in transformers."""


@dataclass
class CoreaiConfig(DynamoConfig):
    """How transformers' exporters write ONNX with this package.

    The fields of transformers' ``DynamoConfig`` (``dynamic``, ``dynamic_shapes``, ``strict``,
    ``quantizer``, …) and these:

    Attributes:
        export_format: ``"coreai_onnx"``.
        target: What will run the file, as for `OnnxProgram.optimize`.
        opset_version: As for `TorchConverter.to_onnx`.
        minimum_onnxruntime: As for `TorchConverter.to_onnx`.
        optimize: Whether to run the graph passes.
    """

    export_format: str = FORMAT

    target: Target = "onnxruntime"
    opset_version: int | None = None
    minimum_onnxruntime: str | None = None
    optimize: bool = True


class CoreaiRunner(ModelRunner):
    """A converted part of a model in onnxruntime; called as the part itself is in torch."""

    def __init__(self, metadata: ExportMetadata, opened: Session) -> None:
        """Hold a session.

        Args:
            metadata: What transformers recorded of the export.
            opened: The session.
        """
        super().__init__(metadata)
        self.session = opened

    @property
    def device(self) -> torch.device:
        """The CPU, where tensors are passed, whatever computes them."""
        return torch.device("cpu")

    @classmethod
    def from_program(
        cls,
        program: OnnxProgram,
        metadata: ExportMetadata,
        device: torch.device | str | None = None,
        *,
        kernels: bool | None = None,
        threads: int | None = None,
        provider: Choice | None = None,
    ) -> CoreaiRunner:
        """Open a program.

        Args:
            program: The program.
            metadata: What transformers recorded of the export.
            device: ``"cpu"``, or a device of torch that is a provider: ``"cuda:1"``.
            kernels: As for `coreai_onnx.session`.
            threads: As for `coreai_onnx.session`.
            provider: As for `coreai_onnx.session`; instead of ``device``.

        Raises:
            SessionError: If the program cannot be opened, or the provider is not available.
        """
        if provider is None and device is not None:
            place = torch.device(device)
            if place.type != "cpu":
                provider = (place.type, {"device_id": place.index or 0})
        return cls(metadata, session(program, kernels=kernels, threads=threads, provider=provider))

    def __call__(
        self,
        share_inputs: bool = True,  # noqa: FBT001, FBT002 - transformers' signature
        share_outputs: bool = False,  # noqa: FBT001, FBT002
        **kwargs: Any,
    ) -> Any:
        """Return what the part of the model returns in torch.

        Args:
            share_inputs: Always so: onnxruntime reads the memory of torch's tensors.
            share_outputs: Ignored: results are new tensors.
            **kwargs: The arguments that the part was exported with.

        Raises:
            InputError: If a name, dtype or shape is wrong.
        """
        del share_inputs, share_outputs
        feeds = onnx_inputs([info.name for info in self.session.inputs], kwargs)
        outputs = self.session.run(**feeds)
        # What is written to an argument, such as a static cache, follows the results; transformers
        # expects results last.
        count = self.out_spec.num_leaves - len(self.out_constants)
        return self.unflatten([to_torch(each, each.dtype.name) for each in outputs[:count]])


class CoreaiExporter(DynamoExporter):
    """Exports a model, or the parts of its generation, as programs of this package."""

    export_format = FORMAT
    config_class = CoreaiConfig
    program_suffix = ".onnx"
    required_packages: Sequence[str] = ["torch", "onnx"]
    tested_versions: Mapping[str, str] = {}

    def export_program(
        self,
        model: torch.nn.Module,
        sample_inputs: MutableMapping[str, Any],
        config: CoreaiConfig,
    ) -> tuple[OnnxProgram, ExportMetadata]:
        """Export one part, convert it, and quantize it if the configuration says so.

        Args:
            model: The part.
            sample_inputs: The arguments of its ``forward``, by name.
            config: The options.

        Raises:
            ConversionError: If it cannot be expressed in ONNX.
            QuantizationError: If it cannot be quantized.
        """
        with patch_model_outputs(model) as (inputs, outputs, returned):
            exported, metadata = super().export_program(model, sample_inputs, config)
        input_names, output_names = disambiguate_io_names(inputs, outputs)
        minimum = config.minimum_onnxruntime
        opset = chosen_opset(config.opset_version, minimum, config.target)
        with warnings.catch_warnings():
            if config.dynamic and config.dynamic_shapes is None:
                # transformers asks for every dim to be dynamic, those of heads included.
                warnings.simplefilter("ignore", SpecializationWarning)
            converter = TorchConverter().add_exported_program(
                exported, input_names=input_names, output_names=output_names
            )
            program = converter.to_onnx(opset_version=opset, minimum_onnxruntime=minimum)
        if config.optimize:
            program.optimize(target=config.target)
        record_output_structure(metadata, returned[-1])
        return quantize_converted_model(program, sample_inputs, config), metadata

    @classmethod
    def save_program(cls, program: OnnxProgram, path: str | PathLike[str]) -> None:
        """Write a program, its weights to a file beside it.

        Raises:
            SaveError: If it cannot be written.
        """
        program.save(path, external_data=True)

    @classmethod
    def load_program(cls, path: str | PathLike[str]) -> OnnxProgram:
        """Read a program that `save_program` wrote.

        Raises:
            LoadError: If there is none, or it is broken.
        """
        return OnnxProgram.load(path)

    @classmethod
    def program_files(cls, filename: str) -> list[str]:
        """Return the files of a program."""
        return [filename, f"{Path(filename).name}.data"]


class CoreaiQuantizer(ExportQuantizer):
    """Quantizes the weights of exported programs, as `OnnxProgram.quantize`.

    Args:
        calibration_dataset: Mappings of the model's inputs, for methods that need data; None
            quantizes without.
        **options: The arguments of `OnnxProgram.quantize`: ``bits``, ``group_size``, ``method``, ….
    """

    supported_formats = (FORMAT,)

    def __init__(
        self, calibration_dataset: Iterable[dict[str, Any]] | None = None, **options: Any
    ) -> None:
        """Keep the options."""
        super().__init__(calibration_dataset)
        self.options = options

    def quantize(
        self, model: OnnxProgram, sample_inputs: dict[str, Any], export_format: str
    ) -> OnnxProgram:
        """Quantize a program in place and return it.

        Raises:
            QuantizationError: If an option is invalid, or the data is missing or does not fit.
        """
        del sample_inputs, export_format
        data = self.calibration_dataset
        if data is None:
            return model.quantize(**self.options)
        names = [value.name or "" for value in model.model.graph.inputs]
        calls = [onnx_inputs(names, sample) for sample in data]
        return model.quantize(**self.options, calibration=calls)


register_backend(CoreaiExporter, CoreaiRunner)
