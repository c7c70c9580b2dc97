"""The bodies of the composites of few bits that quantization calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import onnx_ir as ir
import torch

from coreai_onnx.bodies.trace import Example
from coreai_onnx.bodies.writers import variant_words, write_body
from coreai_onnx.composites import COMPOSITES
from coreai_onnx.composites.declaration import DOMAIN
from coreai_onnx.errors import QuantizationError
from coreai_onnx.targets.opsets import OPSETS

_TORCH_DTYPES = {
    ir.DataType.FLOAT: torch.float32,
    ir.DataType.FLOAT16: torch.float16,
    ir.DataType.BFLOAT16: torch.bfloat16,
    ir.DataType.DOUBLE: torch.float64,
}


class FewBitBodies:
    """Adds functions to a model, one per distinct body."""

    def __init__(self, model: ir.Model) -> None:
        """Check that the model can have them.

        Raises:
            QuantizationError: The opset of the model is too old for the bodies.
        """
        self.model = model
        self.opset = model.graph.opset_imports.get("", 1)
        if self.opset not in OPSETS:
            raise QuantizationError(
                f"the model has opset {self.opset}; quantized weights need opset {OPSETS[0]} to "
                f"{OPSETS[-1]}\n  convert or export it again with such an opset"
            )

    def __call__(
        self,
        name: str,
        dtype: ir.DataType,
        present: Sequence[str],
        attributes: Mapping[str, int | Sequence[int]],
    ) -> str:
        """Return the op type of a call, after adding its function if the model lacks it.

        Args:
            name: Name of the composite.
            dtype: Dtype of the floating inputs that are neither scales nor palettes.
            present: Names of the inputs of the call.
            attributes: All attributes of the call.
        """
        composite, torch_dtype = COMPOSITES[name], _TORCH_DTYPES[dtype]
        # Scales and palettes are cast: a body holds for each of their dtypes.
        dtypes = {
            "codes": torch.uint8,
            "indices": torch.int64 if name == "embedding_nbits" else torch.uint8,
            "zero_points": torch.uint8,
            "zero_point": torch.uint8,
            "scales": torch.float16,
            "palette": torch.float16,
        }
        # These bodies read their dimensions at run time, so that one serves layers of all sizes.
        examples = [
            Example(dtypes.get(declared.name, torch_dtype), ())
            if declared.name in present
            else None
            for declared in composite.inputs
        ]
        words = variant_words(composite, examples, attributes)
        words += ["float64"] if torch_dtype == torch.float64 else []  # others have the same body
        op_type = ".".join(filter(None, (name, "_".join(words))))
        if (DOMAIN, op_type, "") not in self.model.functions:
            function = write_body(composite, examples, attributes, self.opset)
            assert function is not None, f"{name} has no writer"
            function.name = op_type
            self.model.functions[function.identifier()] = function
        return op_type
