// Embed a text with a file of export_model(..., include=["tokenizer", "pooling"]):
// node embed_text.js model.onnx "A man is eating."
import ort from "onnxruntime-node";

const session = await ort.InferenceSession.create(process.argv[2]);
const text = new ort.Tensor("string", [process.argv[3]], [1]);
const { sentence_embedding: embedding } = await session.run({ text });
const first = Array.from(embedding.data.slice(0, 8), (value) => Math.round(value * 1e6) / 1e6);
console.log(JSON.stringify({ shape: embedding.dims, first }));
