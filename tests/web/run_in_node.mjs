// Read {folder, batches} from standard input, run model.onnx on each batch of token ids, and write the predictions.
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { predict } from "../../docs/demo/exits.mjs";

const ort = createRequire(import.meta.url)("onnxruntime-node"); // from NODE_PATH
const { folder, batches } = JSON.parse(readFileSync(0, "utf8"));
const manifest = JSON.parse(readFileSync(`${folder}/exported.json`, "utf8"));
const session = await ort.InferenceSession.create(`${folder}/model.onnx`, { logSeverityLevel: 3 });
const predictions = [];
for (const texts of batches) predictions.push(await predict(ort, session, manifest, texts));
console.log(JSON.stringify(predictions));
