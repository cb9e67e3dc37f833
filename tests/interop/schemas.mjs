// Writes the official JSON schemas that @modelcontextprotocol/conformance carries:
// `node schemas.mjs .../dist/index.js FOLDER` makes FOLDER/<revision>.json.
//
// The package embeds schema/<revision>/schema.json of the specification as object literals
// (2025-03-26 to 2026-07-28). They are cut out by their brackets and evaluated alone; which
// revision one is, is told by a definition that came with it.

import { readFileSync, writeFileSync } from "node:fs";
import { runInNewContext } from "node:vm";

const [bundle, folder] = process.argv.slice(2);
const source = readFileSync(bundle, "utf8");

function literal(start) {
  let depth = 0;
  let quote = "";
  for (let at = start; at < source.length; at++) {
    const character = source[at];
    if (quote) {
      if (character === "\\") at++;
      else if (character === quote) quote = "";
    } else if ("`\"'".includes(character)) quote = character;
    else if ("{[".includes(character)) depth++;
    else if ("}]".includes(character) && --depth === 0) return source.slice(start, at + 1);
  }
  throw new Error("a schema does not end");
}

const BORN = { DiscoverResult: "2026-07-28", Task: "2025-11-25", ElicitRequest: "2025-06-18" };
const found = new Set();
for (const { index } of source.matchAll(/\{\$schema:`[^`]+`,(definitions|\$defs):\{Annotations:/g)) {
  const schema = runInNewContext(`(${literal(index)})`);
  const names = schema.$defs ?? schema.definitions;
  const sign = Object.keys(BORN).find((name) => name in names);
  const revision = sign ? BORN[sign] : "2025-03-26";
  found.add(revision);
  writeFileSync(`${folder}/${revision}.json`, JSON.stringify(schema));
}
if (found.size !== 4) throw new Error(`found only ${[...found]}`);
