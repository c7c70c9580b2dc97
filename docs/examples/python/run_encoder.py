"""Run encoder.onnx without torch: ``python run_encoder.py encoder.onnx [--ops LIBRARY]``."""

import argparse
import json

import numpy as np
import onnxruntime

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("model")
parser.add_argument("--ops", help="the kernel library; without it the function bodies run")
options = parser.parse_args()

settings = onnxruntime.SessionOptions()
if options.ops:
    settings.register_custom_ops_library(options.ops)
session = onnxruntime.InferenceSession(options.model, settings, ["CPUExecutionProvider"])

batch = np.sin(np.arange(2 * 7 * 64) * 0.01).astype(np.float32).reshape(2, 7, 64)
(encoded,) = session.run(None, {session.get_inputs()[0].name: batch})
first = [round(float(value), 6) for value in encoded.ravel()[:8]]
line = {"shape": encoded.shape, "mean": round(float(encoded.mean()), 6), "first": first}
print(json.dumps(line, separators=(",", ":")))
