// Read {address, texts} from standard input, ask a server for all texts at once, and write answers or errors.
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";

const { InferenceClient } = createRequire(import.meta.url)("@huggingface/inference");
const { address, texts } = JSON.parse(readFileSync(0, "utf8"));
const client = new InferenceClient("none").endpoint(address);
const outcomes = await Promise.allSettled(texts.map((inputs) => client.textClassification({ inputs })));
console.log(JSON.stringify(outcomes.map(({ value, reason }) => value ?? { error: String(reason?.message ?? reason) })));
