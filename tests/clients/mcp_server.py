"""An MCP server by the `mcp` package: a tool that answers at once, and one that reports its progress meanwhile.

usage: mcp_server.py [ADDRESS PORT]: Streamable HTTP there, else the standard streams
"""

import asyncio
import sys

from mcp.server.mcpserver import Context, MCPServer

server = MCPServer("sample")


@server.tool()
def add(a: int, b: int) -> int:
    """Adds two numbers."""
    return a + b


@server.tool()
async def count(to: int, ctx: Context) -> str:
    """Counts, and tells of each step."""
    for step in range(to):
        await asyncio.sleep(0.05)
        await ctx.report_progress(step, to, "a step")
    return "counted"


if len(sys.argv) > 1:
    server.run(transport="streamable-http", host=sys.argv[1], port=int(sys.argv[2]))
else:
    server.run(transport="stdio")
