// Read {specification, length, texts} from standard input, and write the token ids of every text.
import { readFileSync } from "node:fs";
import { makeTokenizer } from "../../docs/demo/wordpiece.mjs";

const { specification, length, texts } = JSON.parse(readFileSync(0, "utf8"));
console.log(JSON.stringify(texts.map(makeTokenizer(specification, length))));
