// The measured server on the TypeScript SDK 2: typescript2.mjs stdio|http PORT TOOLS
import { createServer } from "node:http";
import { McpServer, createMcpHandler } from "@modelcontextprotocol/server";
import { serveStdio } from "@modelcontextprotocol/server/stdio";
import { toNodeHandler } from "@modelcontextprotocol/node";
import { z } from "zod";

const [transport, port, tools] = process.argv.slice(2);
const uri = "sensor://bench/temperature";
const text = (value) => ({ content: [{ type: "text", text: value }] });
const echo = { description: "Return the text.", inputSchema: z.object({ text: z.string() }) };

function make() {
  const server = new McpServer({ name: "bench", version: "1.0.0" });
  server.registerTool("echo", echo, async ({ text: value }) => text(value));
  server.registerTool(
    "read_sensor",
    { description: "Read one sensor.", inputSchema: z.object({ sensor: z.string() }) },
    async ({ sensor }) => {
      const value = { sensor, value: 21.5, unit: "Cel" };
      return { ...text(JSON.stringify(value)), structuredContent: value };
    },
  );
  for (let i = 0; i < Number(tools); i++)
    server.registerTool(`echo_${i}`, echo, async ({ text: value }) => text(value));
  server.registerResource("temperature", uri, { mimeType: "application/json" }, async () => ({
    contents: [{ uri, mimeType: "application/json", text: '{"value":21.5,"unit":"Cel"}' }],
  }));
  return server;
}

if (transport === "http")
  createServer(toNodeHandler(createMcpHandler(make))).listen(Number(port), "127.0.0.1");
else serveStdio(make);
