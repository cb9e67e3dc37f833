// The suite imports fs.globSync, which Node has from version 22 on, for a command that is
// not used here. On older ones it gets a stand-in: node --import ./node20-shim.mjs ...
import { register } from "node:module";

const fs = `import fs from "node:fs";
export * from "node:fs";
export default fs;
export const globSync = fs.globSync ?? (() => { throw new Error("needs Node 22"); });`;

const hooks = `export async function resolve(name, context, next) {
  if (name === "fs" && (context.parentURL ?? "").includes("/conformance/dist/"))
    return { shortCircuit: true, url: ${JSON.stringify(
      "data:text/javascript," + encodeURIComponent(fs),
    )} };
  return next(name, context);
}`;

register("data:text/javascript," + encodeURIComponent(hooks));
