"""The client fixture of the official MCP conformance suite.

python3 tests/conformance/client.py URL, with MCP_CONFORMANCE_SCENARIO and, where a
scenario has one, MCP_CONFORMANCE_CONTEXT. The era is negotiated, never told. Exit code
0, except for a scenario that is unknown or has to fail; its own time limit is 60 s.
"""

import asyncio
import json
import os
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))

from tinymcp.client import Client, ClientError, ClientLimits, MCPError
from tinymcp.oauth import OAuth, id_jag
from tinymcp.transports import _Http, _Url

CONTEXT = json.loads(os.environ.get("MCP_CONFORMANCE_CONTEXT") or "{}")


def example(schema):
    """Arguments that a tool accepts, by its inputSchema."""
    made = {"string": "x", "integer": 1, "number": 1.5, "boolean": True}
    required = schema.get("required") or ()
    return {
        name: made.get(field.get("type"), None)
        for name, field in (schema.get("properties") or {}).items()
        if name in required
    }


async def lists_tools(client):
    await client.list_tools()


async def adds(client):
    await client.list_tools()
    await client.call_tool("add_numbers", {"a": 5, "b": 3})


async def fills_in_defaults(client):
    await client.list_tools()
    await client.call_tool("test_client_elicitation_defaults", {})


async def reconnects(client):
    await client.list_tools()
    await client.call_tool("test_reconnection", {})


async def echoes_state(client):
    await client.list_tools()
    for name in ("echo_state", "unrelated", "no_state", "no_result_type"):
        await client.call_tool(f"test_mrtr_{name}", {})


async def sends_headers(client):
    for tool in await client.list_tools():
        await client.call_tool(tool["name"], example(tool["inputSchema"]))
    for resource in await client.list_resources():
        await client.read_resource(resource["uri"])
    for prompt in await client.list_prompts():
        await client.get_prompt(prompt["name"])


async def makes_calls(client):
    await client.list_tools()
    for call in CONTEXT["toolCalls"]:
        await client.call_tool(call["name"], call["arguments"])


async def calls_every_tool(client):
    for tool in await client.list_tools():
        await client.call_tool(tool["name"], example(tool["inputSchema"]))


async def sends_schema_back(client):
    tools = {tool["name"]: tool for tool in await client.list_tools()}
    schema = tools["json_schema_2020_12_tool"]["inputSchema"]
    await client.call_tool("json_schema_echo", {"schema": schema})


async def calls_test_tool(client):
    await client.list_tools()
    await client.call_tool("test-tool", {})


SCENARIOS = {
    "initialize": lists_tools,
    "tools_call": adds,
    "elicitation-sep1034-client-defaults": fills_in_defaults,
    "sse-retry": reconnects,
    "request-metadata": adds,
    "sep-2322-client-request-state": echoes_state,
    "http-standard-headers": sends_headers,
    "http-custom-headers": makes_calls,
    "http-invalid-tool-headers": calls_every_tool,
    "json-schema-ref-no-deref": lists_tools,
    "json-schema-2020-12-preservation": sends_schema_back,
}


async def visit(url):
    """What a browser does with an authorization URL: come back with a redirect."""
    http = _Http(_Url(url), ClientLimits(), {})
    status, headers, _ = await http.fetch("GET", url, {})
    if "location" not in headers:
        raise ClientError(f"the authorization server answered {status}")
    return headers["location"]


def authorization(scenario):
    """An OAuth object for an auth/ scenario."""
    given = {k: CONTEXT.get(k) for k in ("client_id", "client_secret", "issuer")}
    if scenario == "auth/client-credentials-basic":
        method = "client_secret_basic"
        return OAuth(grant="client_credentials", auth_method=method, **given)
    if scenario == "auth/enterprise-managed-authorization":
        names = ("idp_token_endpoint", "idp_id_token", "idp_client_id")
        assertion = id_jag(*(CONTEXT[name] for name in names))
        method = "client_secret_basic"
        return OAuth(
            grant="jwt-bearer", assertion=assertion, auth_method=method, **given
        )
    if scenario == "auth/wif-jwt-bearer":

        async def workload(issuer, resource, http):
            return CONTEXT["valid_jwt"]

        return OAuth(grant="jwt-bearer", assertion=workload, **given)
    return OAuth(
        client_metadata_url="https://conformance-test.local/client-metadata.json",
        authorize=visit,
        redirect_uri="http://localhost:3000/callback",
        **given,
    )


async def run(scenario, url):
    """One scenario."""

    def elicit(params):
        fields = (params.get("requestedSchema") or {}).get("properties") or {}
        return {"confirmed": True} if "confirmed" in fields else {}

    if scenario.startswith("auth/"):
        steps, auth = calls_test_tool, authorization(scenario)
    else:
        steps, auth = SCENARIOS[scenario], None
    # All scenarios run at once: silence is no sign of an era on a busy machine.
    limits = ClientLimits(probe=45.0)
    options = {"auth": auth, "elicitation_callback": elicit, "limits": limits}
    async with Client(url, **options) as client:
        await steps(client)


def main():
    scenario = os.environ.get("MCP_CONFORMANCE_SCENARIO", "")
    if scenario not in SCENARIOS and not scenario.startswith("auth/"):
        print(f"unknown scenario {scenario!r}", file=sys.stderr)
        return 2
    try:
        asyncio.run(asyncio.wait_for(run(scenario, sys.argv[-1]), 60))
    except (ClientError, MCPError, asyncio.TimeoutError) as error:
        print(f"{scenario}: {type(error).__name__}: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
