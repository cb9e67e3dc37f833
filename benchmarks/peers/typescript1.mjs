// The measured server on the TypeScript SDK 1: typescript1.mjs stdio|http PORT TOOLS
import { randomUUID } from "node:crypto";
import { createServer } from "node:http";
import { McpServer } from "@modelcontextprotocol/sdk/server/mcp.js";
import { StdioServerTransport } from "@modelcontextprotocol/sdk/server/stdio.js";
import { StreamableHTTPServerTransport } from "@modelcontextprotocol/sdk/server/streamableHttp.js";
import { z } from "zod";

const [transport, port, tools] = process.argv.slice(2);
const uri = "sensor://bench/temperature";
const text = (value) => ({ content: [{ type: "text", text: value }] });
const echo = { description: "Return the text.", inputSchema: { text: z.string() } };

function make() {
  const server = new McpServer({ name: "bench", version: "1.0.0" });
  server.registerTool("echo", echo, async ({ text: value }) => text(value));
  server.registerTool(
    "read_sensor",
    { description: "Read one sensor.", inputSchema: { sensor: z.string() } },
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

const sessions = new Map();

async function handle(request, response) {
  let session = sessions.get(request.headers["mcp-session-id"]);
  if (!session) {
    session = new StreamableHTTPServerTransport({
      sessionIdGenerator: randomUUID,
      enableJsonResponse: true,
      onsessioninitialized: (id) => sessions.set(id, session),
    });
    await make().connect(session);
  }
  await session.handleRequest(request, response);
}

if (transport === "http") createServer(handle).listen(Number(port), "127.0.0.1");
else await make().connect(new StdioServerTransport());
