"""Make the file that the example apps load: ``python make_model.py encoder.onnx``."""

import sys

import torch

import coreai_onnx

torch.manual_seed(0)
model = torch.nn.TransformerEncoderLayer(64, 4, 128, batch_first=True, norm_first=True).eval()
dims = {"src": {0: torch.export.Dim("batch"), 1: torch.export.Dim("seq", max=512)}}
program = coreai_onnx.convert(
    model,
    (torch.randn(2, 10, 64),),
    dynamic_shapes=dims,
    opset_version=21,  # what every onnxruntime from 1.18 takes
)
program.save(sys.argv[1])
print(program)
