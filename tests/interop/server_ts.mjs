// A server on the TypeScript SDK 2: server_ts.mjs stdio|PORT dual|modern
import { createServer } from "node:http";
import { createMcpHandler, McpServer } from "@modelcontextprotocol/server";
import { serveStdio } from "@modelcontextprotocol/server/stdio";
import { toNodeHandler } from "@modelcontextprotocol/node";
import { z } from "zod";

const [where, eras] = process.argv.slice(2);

function make() {
  const server = new McpServer({ name: "interop", version: "1.0.0" });
  server.registerTool(
    "add",
    {
      description: "Add two numbers.",
      inputSchema: z.object({ a: z.number(), b: z.number() }),
      outputSchema: z.object({ sum: z.number() }),
    },
    async ({ a, b }) => ({
      content: [{ type: "text", text: String(a + b) }],
      structuredContent: { sum: a + b },
    }),
  );
  server.registerResource("value", "test://value", { mimeType: "text/plain" }, async () => ({
    contents: [{ uri: "test://value", mimeType: "text/plain", text: "42" }],
  }));
  server.registerPrompt(
    "advice",
    { argsSchema: z.object({ plant: z.string() }) },
    ({ plant }) => ({
      messages: [{ role: "user", content: { type: "text", text: `What does ${plant} need?` } }],
    }),
  );
  return server;
}

if (where === "stdio") {
  serveStdio(make, { legacy: eras === "modern" ? "reject" : "serve" });
} else {
  const legacy = eras === "modern" ? "reject" : "stateless";
  const handler = toNodeHandler(createMcpHandler(make, { legacy }));
  createServer(handler).listen(Number(where), "127.0.0.1");
}
