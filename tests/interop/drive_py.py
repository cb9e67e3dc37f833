"""Drives a Python SDK: reads a job (JSON) on stdin, writes the records on stdout.

One class per generation of the API: `mcp` 1.x (down to 1.2), `mcp` 2.x, fastmcp 4. What
they share is in `Driver`: the callbacks that play the user, and what came in between.
"""

from __future__ import annotations

import asyncio
import json
import sys
from contextlib import AsyncExitStack
from typing import Any

POEM = "Basil sleeps."
ROOT = "file:///srv/beds"
WAIT = 20.0  # seconds for any one step


def plain(value: Any) -> Any:
    """A pydantic model in wire form."""
    return value.model_dump(by_alias=True, mode="json", exclude_none=True)


def fill(schema: dict[str, Any]) -> dict[str, Any]:
    """An answer to a form: what it accepts, the same in every driver."""

    def one(field: dict[str, Any]) -> Any:
        if "enum" in field:
            return field["enum"][0]
        kinds = {"boolean": True, "string": "Ada", "integer": 1, "number": 1.5}
        return kinds[field["type"]]

    return {name: one(field) for name, field in schema["properties"].items()}


class Driver:
    """What the generations share. An operation is a method `do_NAME`."""

    def __init__(self, job: dict[str, Any]) -> None:
        self.job = job
        self.stack = AsyncExitStack()
        self.events: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self.record: dict[str, Any] = {}
        self.answer: str | None = None
        self.first_progress = asyncio.Event()

    async def run(self) -> dict[str, Any]:
        """Carry out the steps; always end the connection as a user would."""
        records: dict[str, Any] = {}
        try:
            for key, operation, arguments in self.job["steps"]:
                self.record = records[key] = {}
                await self.step(operation, arguments)
                if operation == "connect" and "result" not in self.record:
                    break
        finally:
            await (
                self.stack.aclose()
            )  # in this task (anyio's rule); the runner has a limit
        return {"protocol": self.protocol, "records": records}

    async def step(self, operation: str, arguments: dict[str, Any]) -> None:
        """One operation, its outcome in `self.record`."""
        record = self.record
        try:
            work = getattr(self, f"do_{operation}")(**arguments)
            # What opens a context must run in the task that closes it.
            direct = operation in ("connect", "subscribe")
            result = await (work if direct else asyncio.wait_for(work, WAIT))
            record["result"] = result if isinstance(result, dict) else plain(result)
        except Exception as error:  # whatever an SDK raises is its way to report one
            found = getattr(error, "error", error)
            record["error"] = {
                "code": getattr(found, "code", None),
                "message": f"{type(error).__name__}: {error}",
            }

    protocol: str = ""
    api: Any  # the session or client with the request methods

    # ---- The user's side -------------------------------------------------------------

    def note(self, kind: str, params: Any) -> None:
        """Keep what came during a step."""
        self.record.setdefault(kind, []).append(plain(params))

    async def on_elicit(self, context: Any, params: Any) -> Any:
        """Answer a form as the step says."""
        self.note("asked", params)
        content = None
        if self.answer == "accept":
            content = fill(self.record["asked"][-1]["requestedSchema"])
        return self.types.ElicitResult(action=self.answer or "cancel", content=content)

    async def on_sample(self, context: Any, params: Any) -> Any:
        """The client's model."""
        self.note("asked", params)
        block = self.types.TextContent(type="text", text=POEM)
        return self.types.CreateMessageResult(
            role="assistant", content=block, model="m"
        )

    async def on_roots(self, context: Any) -> Any:
        """The client's folders."""
        return self.types.ListRootsResult(roots=[self.types.Root(uri=ROOT)])

    async def on_log(self, params: Any) -> None:
        """A log message."""
        self.note("log", params)

    async def on_message(self, message: Any) -> None:
        """A notification, for `until`."""
        message = getattr(message, "root", message)  # 1.x wraps unions
        method = getattr(message, "method", None)
        if method is not None and not hasattr(message, "id"):
            self.events.put_nowait(plain(message))

    async def on_progress(
        self, progress: float, total: float | None = None, message: str | None = None
    ) -> None:
        """Progress of the running call."""
        step = {"progress": progress, "total": total, "message": message}
        self.record.setdefault("progress", []).append(step)
        self.first_progress.set()

    # ---- Operations ------------------------------------------------------------------

    async def do_ping(self) -> Any:
        return await self.api.send_ping()

    async def do_tools(self) -> Any:
        return await self.api.list_tools()

    async def do_resources(self) -> Any:
        return await self.api.list_resources()

    async def do_templates(self) -> Any:
        return await self.api.list_resource_templates()

    async def do_prompts(self) -> Any:
        return await self.api.list_prompts()

    async def do_read(self, uri: str) -> Any:
        return await self.api.read_resource(self.uri(uri))

    async def do_prompt(self, name: str, arguments: dict[str, str]) -> Any:
        return await self.api.get_prompt(name, arguments)

    async def do_level(self, level: str) -> Any:
        return await self.api.set_logging_level(level)

    async def do_complete(self, ref: dict[str, str], name: str, value: str) -> Any:
        kinds = {"ref/prompt": "PromptReference", "ref/resource": self.template}
        kind = getattr(self.types, kinds[ref["type"]])
        return await self.api.complete(kind(**ref), {"name": name, "value": value})

    async def do_call(
        self,
        name: str,
        arguments: dict[str, Any],
        answer: str | None = None,
        cancel: bool = False,
        log: str = "",
    ) -> Any:
        self.answer = answer
        self.first_progress.clear()
        work = asyncio.ensure_future(self.call(name, arguments))
        if cancel:
            await self.first_progress.wait()
            work.cancel()
            await asyncio.wait([work])
            raise RuntimeError("cancelled by the user")
        return await work

    async def call(self, name: str, arguments: dict[str, Any]) -> Any:
        return await self.api.call_tool(
            name, arguments, progress_callback=self.on_progress
        )

    async def do_until(self, method: str) -> Any:
        while True:
            event = await self.events.get()
            if event["method"] == method:
                return event

    async def do_subscribe(self, uris: list[str]) -> Any:
        for uri in uris:
            await self.api.subscribe_resource(self.uri(uri))
        return {}

    async def do_sweep(self) -> Any:
        tools, resources = await self.do_tools(), await self.do_resources()
        return {
            "tools": {t.name: plain(await self.call(t.name, {})) for t in tools.tools},
            "resources": {
                str(one.uri): plain(await self.do_read(str(one.uri)))
                for one in resources.resources
            },
        }

    @staticmethod
    def uri(uri: str) -> Any:
        return uri

    template = "ResourceTemplateReference"


class Mcp1(Driver):
    """`mcp` 1.x: transports are context managers, ClientSession takes callbacks."""

    def __init__(self, job: dict[str, Any]) -> None:
        super().__init__(job)
        import inspect

        from mcp import ClientSession, types

        self.types = types
        self.accepted = inspect.signature(ClientSession.__init__).parameters
        self.old = "message_handler" not in self.accepted  # before 1.3
        if not hasattr(types, self.template):
            self.template = "ResourceReference"

    async def transport(self) -> tuple[Any, Any]:
        """The two streams."""
        if "command" in self.job:
            from mcp.client.stdio import StdioServerParameters, stdio_client

            command, *rest = self.job["command"]
            parameters = StdioServerParameters(command=command, args=rest)
            return await self.stack.enter_async_context(stdio_client(parameters))
        from mcp.client.streamable_http import streamablehttp_client

        url = self.job["url"]
        read, write, _ = await self.stack.enter_async_context(
            streamablehttp_client(url)
        )
        return read, write

    async def do_connect(self, log: str = "") -> Any:
        from mcp import ClientSession

        wanted = {
            "elicitation_callback": self.on_elicit,
            "sampling_callback": self.on_sample,
            "list_roots_callback": self.on_roots,
            "logging_callback": self.on_log,
            "message_handler": self.on_message,
        }
        given = {k: v for k, v in wanted.items() if k in self.accepted}
        session = ClientSession(*await self.transport(), **given)
        self.api = await self.stack.enter_async_context(session)
        if self.old:
            reading = asyncio.ensure_future(self.incoming())
            self.stack.callback(reading.cancel)
        result = await asyncio.wait_for(self.api.initialize(), WAIT)
        self.protocol = result.protocolVersion
        told = plain(result)
        return {**told, "server": told["serverInfo"]}

    async def incoming(self) -> None:
        """1.2 has a stream of messages instead of callbacks."""
        async for message in self.api.incoming_messages:
            found = getattr(message, "root", message)
            if getattr(found, "method", "") == "notifications/message":
                self.note("log", found.params)
            await self.on_message(message)

    async def call(self, name: str, arguments: dict[str, Any]) -> Any:
        if self.old:
            return await self.api.call_tool(name, arguments)
        return await super().call(name, arguments)

    # Static in the base; the old SDK wants a type of its own.
    def uri(self, uri: str) -> Any:  # type: ignore[override]
        from pydantic import AnyUrl

        return AnyUrl(uri)


class Mcp2(Driver):
    """`mcp` 2.x: one Client, three modes."""

    def __init__(self, job: dict[str, Any]) -> None:
        super().__init__(job)
        import mcp_types

        self.types = mcp_types

    def target(self) -> Any:
        """A URL, or the command of a server."""
        from mcp import StdioServerParameters

        if "url" in self.job:
            return self.job["url"]
        command, *rest = self.job["command"]
        return StdioServerParameters(command=command, args=rest)

    async def do_connect(self, log: str = "") -> Any:
        from mcp import Client

        client = Client(
            self.target(),
            mode=self.job["mode"],
            elicitation_callback=self.on_elicit,
            sampling_callback=self.on_sample,
            list_roots_callback=self.on_roots,
            logging_callback=self.on_log,
            log_level=log or None,
            message_handler=self.on_message,
        )
        self.api = await self.stack.enter_async_context(client)
        self.protocol = self.api.protocol_version
        return {
            "server": self.api.server_info and plain(self.api.server_info),
            "capabilities": plain(self.api.server_capabilities),
            "instructions": self.api.instructions,
        }

    async def do_subscribe(self, uris: list[str]) -> Any:
        if self.protocol < "2026-07-28":
            return await super().do_subscribe(uris)
        from mcp.shared.subscriptions import event_to_notification

        everything = {
            f"{k}_list_changed": True for k in ("tools", "prompts", "resources")
        }
        stream = self.api.listen(resource_subscriptions=uris, **everything)
        opened = await self.stack.enter_async_context(stream)

        async def follow() -> None:
            async for event in opened:
                self.events.put_nowait(plain(event_to_notification(event, {})))

        following = asyncio.ensure_future(follow())
        self.stack.callback(following.cancel)
        return plain(opened.honored)


class FastMcp(Mcp2):
    """fastmcp 4: its own Client on top of mcp 2; lists come without an envelope."""

    def target(self) -> Any:
        from fastmcp.client.transports import StdioTransport

        if "url" in self.job:
            return self.job["url"]
        command, *rest = self.job["command"]
        return StdioTransport(command=command, args=rest, keep_alive=False)

    async def do_connect(self, log: str = "") -> Any:
        from fastmcp import Client

        async def elicit(message: str, kind: Any, params: Any, context: Any) -> Any:
            return await self.on_elicit(context, params)

        async def sample(messages: Any, params: Any, context: Any) -> Any:
            return await self.on_sample(context, params)

        client = Client(
            self.target(),
            mode=self.job["mode"],
            elicitation_handler=elicit,
            sampling_handler=sample,
            roots=[ROOT],
            log_handler=self.on_log,
            message_handler=self.on_message,
        )
        self.api = await self.stack.enter_async_context(client)
        self.protocol = self.api.protocol_version
        return {
            "server": self.api.server_info and plain(self.api.server_info),
            "capabilities": plain(self.api.server_capabilities),
            "instructions": self.api.instructions,
        }

    async def do_ping(self) -> Any:
        return {"answered": await self.api.ping()}

    async def do_level(self, level: str) -> Any:
        await self.api.set_logging_level(level)
        return {}

    async def do_tools(self) -> Any:
        return await self.api.list_tools_mcp()

    async def do_resources(self) -> Any:
        return await self.api.list_resources_mcp()

    async def do_templates(self) -> Any:
        return await self.api.list_resource_templates_mcp()

    async def do_prompts(self) -> Any:
        return await self.api.list_prompts_mcp()

    async def do_read(self, uri: str) -> Any:
        return await self.api.read_resource_mcp(uri)

    async def do_prompt(self, name: str, arguments: dict[str, str]) -> Any:
        return await self.api.get_prompt_mcp(name, arguments)

    async def do_complete(self, ref: dict[str, str], name: str, value: str) -> Any:
        kinds = {"ref/prompt": "PromptReference", "ref/resource": self.template}
        kind = getattr(self.types, kinds[ref["type"]])
        return await self.api.complete_mcp(kind(**ref), {"name": name, "value": value})

    async def call(self, name: str, arguments: dict[str, Any]) -> Any:
        return await self.api.call_tool_mcp(
            name, arguments, progress_handler=self.on_progress
        )


KINDS = {"mcp1": Mcp1, "mcp2": Mcp2, "fastmcp": FastMcp}


def main() -> None:
    """Read the job, print the records."""
    job = json.load(sys.stdin)
    print(json.dumps(asyncio.run(KINDS[job["kind"]](job).run())))


if __name__ == "__main__":
    main()
