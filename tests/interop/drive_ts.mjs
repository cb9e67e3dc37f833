// Drives a TypeScript SDK: reads a job (JSON) on stdin, writes the records on stdout.
// The runner copies it into the SDK's folder, where the imports resolve. `v1` is
// @modelcontextprotocol/sdk, `v2` is @modelcontextprotocol/client.

import { readFileSync } from "node:fs";

const job = JSON.parse(readFileSync(0, "utf8"));
const v1 = job.kind === "v1";
const WAIT = 20000; // milliseconds for any one step
const MODERN = "2026-07-28";
const LEVEL = "io.modelcontextprotocol/logLevel";

async function load() {
  if (!v1) {
    return {
      ...(await import("@modelcontextprotocol/client")),
      ...(await import("@modelcontextprotocol/client/stdio")),
    };
  }
  const paths = ["client/index.js", "client/stdio.js", "client/streamableHttp.js", "types.js"];
  const parts = paths.map((path) => import(`@modelcontextprotocol/sdk/${path}`));
  return Object.assign({}, ...(await Promise.all(parts)));
}

const sdk = await load();
// v1 names a handler by the schema of its message, v2 by the method.
const SCHEMAS = {
  "elicitation/create": "ElicitRequestSchema",
  "sampling/createMessage": "CreateMessageRequestSchema",
  "roots/list": "ListRootsRequestSchema",
  "notifications/message": "LoggingMessageNotificationSchema",
  "notifications/resources/updated": "ResourceUpdatedNotificationSchema",
  "notifications/tools/list_changed": "ToolListChangedNotificationSchema",
  "notifications/resources/list_changed": "ResourceListChangedNotificationSchema",
  "notifications/prompts/list_changed": "PromptListChangedNotificationSchema",
};
const handle = (method) => (v1 ? sdk[SCHEMAS[method]] : method);

let record = {};
let answer;
const events = [];
let wake = () => {};
const note = (kind, value) => (record[kind] ??= []).push(value);

function fill(schema) {
  const kinds = { boolean: true, string: "Ada", integer: 1, number: 1.5 };
  const fields = Object.entries(schema.properties);
  return Object.fromEntries(fields.map(([name, f]) => [name, f.enum?.[0] ?? kinds[f.type]]));
}

const mode = job.mode === "auto" || job.mode === "legacy" ? job.mode : { pin: job.mode };
const client = new sdk.Client(
  { name: "interop", version: "0" },
  {
    capabilities: { elicitation: {}, sampling: {}, roots: {} },
    ...(v1 ? {} : { versionNegotiation: { mode } }),
  },
);
client.setRequestHandler(handle("elicitation/create"), async ({ params }) => {
  note("asked", params);
  if (answer !== "accept") return { action: answer ?? "cancel" };
  return { action: "accept", content: fill(params.requestedSchema) };
});
client.setRequestHandler(handle("sampling/createMessage"), async ({ params }) => {
  note("asked", params);
  return { role: "assistant", model: "m", content: { type: "text", text: "Basil sleeps." } };
});
client.setRequestHandler(handle("roots/list"), async () => ({
  roots: [{ uri: "file:///srv/beds" }],
}));
for (const method of Object.keys(SCHEMAS).filter((name) => name.startsWith("notif"))) {
  client.setNotificationHandler(handle(method), (notification) => {
    if (method === "notifications/message") note("log", notification.params);
    events.push(notification);
    wake();
  });
}

const protocol = () =>
  v1 ? transport.protocolVersion ?? spoken : client.getNegotiatedProtocolVersion();
const modern = () => !v1 && protocol() >= MODERN;
let spoken; // v1 tells the version to the transport only
const transport = job.url
  ? new sdk.StreamableHTTPClientTransport(new URL(job.url))
  : new sdk.StdioClientTransport({
      command: job.command[0],
      args: job.command.slice(1),
      stderr: "inherit",
    });
if (v1) {
  const inner = transport.setProtocolVersion?.bind(transport);
  transport.setProtocolVersion = (version) => {
    spoken = version;
    inner?.(version);
  };
}

async function call({ name, arguments: args, answer: how, cancel, log }) {
  answer = how;
  const gone = new AbortController();
  const options = {
    timeout: WAIT,
    signal: gone.signal,
    onprogress: (progress) => {
      note("progress", progress);
      if (cancel) gone.abort("the user gave up");
    },
  };
  const params = { name, arguments: args };
  if (log && modern()) params._meta = { [LEVEL]: log };
  return v1 ? client.callTool(params, undefined, options) : client.callTool(params, options);
}

const operations = {
  async connect() {
    await client.connect(transport);
    return {
      server: client.getServerVersion(),
      capabilities: client.getServerCapabilities(),
      instructions: client.getInstructions(),
    };
  },
  ping: () => client.ping(),
  level: ({ level }) => client.setLoggingLevel(level),
  tools: () => client.listTools(),
  resources: () => client.listResources(),
  templates: () => client.listResourceTemplates(),
  prompts: () => client.listPrompts(),
  read: (params) => client.readResource(params),
  prompt: (params) => client.getPrompt(params),
  complete: ({ ref, name, value }) => client.complete({ ref, argument: { name, value } }),
  call,
  async subscribe({ uris }) {
    if (modern()) {
      const filter = { toolsListChanged: true, promptsListChanged: true };
      const stream = await client.listen({
        ...filter,
        resourcesListChanged: true,
        resourceSubscriptions: uris,
      });
      return stream.honoredFilter;
    }
    for (const uri of uris) await client.subscribeResource({ uri });
    return {};
  },
  async until({ method }) {
    for (;;) {
      const found = events.findIndex((event) => event.method === method);
      if (found >= 0) return events.splice(found, 1)[0];
      await new Promise((resolve) => (wake = resolve));
    }
  },
  async sweep() {
    const swept = { tools: {}, resources: {} };
    for (const { name } of (await client.listTools()).tools) {
      swept.tools[name] = await call({ name, arguments: {} });
    }
    for (const { uri } of (await client.listResources()).resources) {
      swept.resources[uri] = await client.readResource({ uri });
    }
    return swept;
  },
};

function limited(work) {
  let timer;
  const late = new Promise((_, fail) => {
    timer = setTimeout(() => fail(new Error("no answer in time")), WAIT);
  });
  return Promise.race([work, late]).finally(() => clearTimeout(timer));
}

const records = {};
for (const [key, operation, params] of job.steps) {
  record = records[key] = {};
  try {
    record.result = await limited(operations[operation](params));
  } catch (error) {
    record.error = { code: error.code ?? null, message: `${error.name}: ${error.message}` };
  }
  if (operation === "connect" && !record.result) break;
}
const version = protocol();
if (job.url && !modern()) await transport.terminateSession?.();
await client.close();
process.stdout.write(JSON.stringify({ protocol: version, records }) + "\n", () => process.exit(0));
