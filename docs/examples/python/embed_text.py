"""Embed a text: ``python embed_text.py model.onnx "A man is eating." [--extensions]``."""

import argparse
import json

import numpy as np
import onnxruntime

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("model", help='of export_model(..., include=["tokenizer", "pooling"])')
parser.add_argument("text")
parser.add_argument("--extensions", action="store_true", help="for BPE and Unigram")
options = parser.parse_args()

settings = onnxruntime.SessionOptions()
if options.extensions:
    import onnxruntime_extensions

    settings.register_custom_ops_library(onnxruntime_extensions.get_library_path())
session = onnxruntime.InferenceSession(options.model, settings, ["CPUExecutionProvider"])
text = np.array([options.text], object)
(embedding,) = session.run(["sentence_embedding"], {"text": text})
first = [round(float(value), 6) for value in embedding[0, :8]]
print(json.dumps({"shape": embedding.shape, "first": first}, separators=(",", ":")))
