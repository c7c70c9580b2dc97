// Run encoder.onnx in Node.js, on its function bodies: node run_encoder.js encoder.onnx
// First: npm install --ignore-scripts (the scripts would fetch libraries for GPUs).
import ort from "onnxruntime-node";

const session = await ort.InferenceSession.create(process.argv[2]);
const values = Float32Array.from({ length: 2 * 7 * 64 }, (_, i) => Math.sin(i * 0.01));
const batch = new ort.Tensor("float32", values, [2, 7, 64]);
const results = await session.run({ [session.inputNames[0]]: batch });
const encoded = results[session.outputNames[0]];

const round = (value) => Math.round(value * 1e6) / 1e6;
const mean = encoded.data.reduce((sum, value) => sum + value, 0) / encoded.data.length;
const first = Array.from(encoded.data.slice(0, 8), round);
console.log(JSON.stringify({ shape: encoded.dims, mean: round(mean), first }));
