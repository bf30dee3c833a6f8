"""Clients of mcp_server.py by the `mcp` package: prints the tools, a sum, and how many steps all have heard of.

usage: mcp_client.py stdio COMMAND [ARGUMENT...] | mcp_client.py http URL CLIENTS
"""

import asyncio
import sys

from mcp import Client, StdioServerParameters

STEPS = 5


async def talk(server):
    heard = []

    async def step(done, _all, _message):
        heard.append(done)

    async with Client(server) as client:
        tools = sorted(tool.name for tool in (await client.list_tools()).tools)
        total = (await client.call_tool("add", {"a": 2, "b": 3})).content[0].text
        counted = await client.call_tool("count", {"to": STEPS}, progress_callback=step)
        return tools, total, counted.content[0].text, len(heard)


async def main(kind, target, *words):
    if kind == "stdio":
        servers = [StdioServerParameters(command=target, args=list(words))]
    else:
        servers = [target] * int(words[0])
    answers = await asyncio.wait_for(asyncio.gather(*map(talk, servers)), 60)
    print(*answers[0][:3], sum(answer[3] for answer in answers), all(a[:3] == answers[0][:3] for a in answers))


asyncio.run(main(*sys.argv[1:]))
