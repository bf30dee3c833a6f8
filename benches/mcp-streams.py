#!/usr/bin/env python3
"""How much later events of MCP's Streamable HTTP arrive through the gateway and through a published port than directly.

usage: benches/mcp-streams.py [--tidegate target/release/tidegate] [--streams 50] [--seconds 60] [--silence 360]

A stream is one POST of `tools/call` whose answer is an event stream; each event carries the time at which it was
sent. All three ways run at once, their events in turn: `seconds` of them, one a second on each stream, then nothing
for `silence` seconds, then as many again. One process each for a server and for the clients of a way, without
threads: they wait in epoll(7) and do nothing else. In a session of its own (setsid -w) what else runs in the caller's
does not delay it. Server and clients are this machine's own; nothing leaves it.
"""

import argparse
import heapq
import json
import os
import re
import select
import socket
import subprocess
import sys
import tempfile
import time
import urllib.parse

SERVER, PUBLISHED = 8099, 8098
NAME = "mcp.test"
SENT = re.compile(rb'"sent": ?(\d+)')
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nCache-Control: no-cache\r\nTransfer-Encoding: chunked\r\n\r\n"


def chunk(message):
    event = b"event: message\ndata: %s\n\n" % json.dumps({"jsonrpc": "2.0", **message}).encode()
    return b"%x\r\n%s\r\n" % (len(event), event)


def serve():
    """Answers each call with events at the times that it asks for, until it is ended."""
    listener = socket.create_server(("127.0.0.1", SERVER), backlog=512)
    listener.setblocking(False)
    poll, streams, due = select.epoll(), {}, []
    poll.register(listener, select.EPOLLIN)
    while True:
        wait = max(0, due[0][0] - time.monotonic_ns()) / 1e9 if due else None
        for descriptor, _ in poll.poll(wait):
            if descriptor == listener.fileno():
                stream, _ = listener.accept()
                stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                streams[stream.fileno()] = [stream, b""]
                poll.register(stream, select.EPOLLIN)
                continue
            stream, read = streams[descriptor]
            more = stream.recv(65536)
            streams[descriptor][1] = read = read + more
            if not more:
                poll.unregister(stream)
                del streams[descriptor]
            elif read.endswith(b"}"):
                times = json.loads(read.partition(b"\r\n\r\n")[2])["params"]["arguments"]["times"]
                stream.sendall(HEAD)
                heapq.heappush(due, (times[0], descriptor, 0, times))
        while due and due[0][0] <= time.monotonic_ns():
            _, descriptor, at, times = heapq.heappop(due)
            if descriptor not in streams:
                continue
            stream = streams[descriptor][0]
            told = {"progressToken": 1, "progress": at, "sent": time.monotonic_ns()}
            stream.sendall(chunk({"method": "notifications/progress", "params": told}))
            if at + 1 < len(times):
                heapq.heappush(due, (times[at + 1], descriptor, at + 1, times))
            else:
                result = {"content": [{"type": "text", "text": "done"}]}
                stream.sendall(chunk({"id": 1, "result": result}) + b"0\r\n\r\n")


def call(url, schedule, proxy):
    """Opens one stream."""
    parts = urllib.parse.urlsplit(url)
    near = urllib.parse.urlsplit(proxy) if proxy else parts
    params = {"name": "count", "_meta": {"progressToken": 1}, "arguments": {"times": schedule}}
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}).encode()
    target = url if proxy else parts.path
    head = (
        f"POST {target} HTTP/1.1\r\nHost: {parts.netloc}\r\nContent-Type: application/json\r\n"
        f"Accept: application/json, text/event-stream\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    stream = socket.create_connection((near.hostname, near.port))
    stream.sendall(head.encode() + body)
    return stream


def listen(url, settings):
    """Clients of one way: prints how late each event was, in nanoseconds, as a list for each stream."""
    proxy = os.environ.get("http_proxy") if settings["proxy"] else None
    poll, streams = select.epoll(), {}
    for number in range(settings["streams"]):
        first = settings["start"] + number * 1_000_000_000 // settings["streams"]
        gaps = [0, settings["seconds"] + settings["silence"]]
        times = [first + (gap + n) * 1_000_000_000 for gap in gaps for n in range(settings["seconds"])]
        stream = call(url, times, proxy)
        poll.register(stream, select.EPOLLIN)
        streams[stream.fileno()] = [stream, b"", []]
    late, open_streams = [], len(streams)
    while open_streams:
        for descriptor, _ in poll.poll():
            now = time.monotonic_ns()
            one = streams[descriptor]
            more = one[0].recv(65536)
            one[1] += more
            whole, _, one[1] = one[1].rpartition(b"\n\n")
            one[2] += [now - int(sent) for sent in SENT.findall(whole)]
            if not more or b'"result"' in whole:
                poll.unregister(one[0])
                late.append(one[2])
                open_streams -= 1
    print(json.dumps(late))


def shown(values):
    values = sorted(values)
    at = lambda share: values[min(len(values) - 1, int(len(values) * share))] / 1e6
    return at(0.5), at(0.99), values[-1] / 1e6


def wait_for(port):
    """Until a server is there: a published port is there before it, and closes what comes too early."""
    while True:
        try:
            with socket.create_connection(("127.0.0.1", port)) as stream:
                stream.settimeout(0.3)
                if stream.recv(1):
                    return
        except TimeoutError:
            return
        except OSError:
            pass
        time.sleep(0.05)


def measure(options):
    words = [sys.executable, os.path.abspath(__file__)]
    folder = tempfile.TemporaryDirectory()
    config = os.path.join(folder.name, "tidegate.toml")
    with open(config, "w", encoding="utf-8") as file:
        file.write(
            f'[internal.mcp]\nhost = "{NAME}"\nhost_port = "127.0.0.1:{SERVER}"\n'
            '[sandbox.clients]\ninternal = ["mcp"]\n[sandbox.server]\n'
        )
    os.chmod(config, 0o600)
    run = [options.tidegate, "run", "--config", config, "--sandbox"]
    servers = [
        subprocess.Popen([*words, "serve"]),
        subprocess.Popen([*run, "server", "--publish", f"127.0.0.1:{PUBLISHED}:{SERVER}", "--", *words, "serve"]),
    ]
    try:
        wait_for(SERVER)
        wait_for(PUBLISHED)
        # Time for all to start; the ways take turns within what lies between two streams of one.
        start = time.monotonic_ns() + 3_000_000_000
        turn = 1_000_000_000 // options.streams // 3
        ways = {
            "direct": ([], f"http://127.0.0.1:{SERVER}/mcp"),
            "through the gateway": ([*run, "clients", "--"], f"http://{NAME}:{SERVER}/mcp"),
            "through --publish": ([], f"http://127.0.0.1:{PUBLISHED}/mcp"),
        }
        clients = {}
        for number, (way, (before, url)) in enumerate(ways.items()):
            settings = {
                "start": start + number * turn,
                "streams": options.streams,
                "seconds": options.seconds,
                "silence": options.silence,
                "proxy": bool(before),
            }
            listening = [*before, *words, "listen", url, json.dumps(settings)]
            clients[way] = subprocess.Popen(listening, stdout=subprocess.PIPE, text=True)
        late = {way: json.loads(client.communicate()[0]) for way, client in clients.items()}
    finally:
        for server in servers:
            server.terminate()
            server.wait()
    expected = options.streams * options.seconds * 2
    print(f"{options.streams} streams, {options.seconds} s of events, {options.silence} s of silence, {options.seconds} s;")
    print(f"load average {os.getloadavg()[0]:.1f}\n")
    print("| way | events | lost | p50 ms | p99 ms | max ms | p99 later than direct | first after the silence: p50, max ms |")
    print("|---|---:|---:|---:|---:|---:|---:|---|")
    direct = None
    for way, streams in late.items():
        events = [event for stream in streams for event in stream]
        p50, p99, most = shown(events)
        direct = direct or p99
        woken = [stream[options.seconds] for stream in streams if len(stream) > options.seconds]
        first50, _, first_most = shown(woken) if woken else (float("nan"),) * 3
        print(
            f"| {way} | {len(events)} | {expected - len(events)} | {p50:.2f} | {p99:.2f} | {most:.2f} "
            f"| {p99 - direct:.2f} ms | {first50:.2f}, {first_most:.2f} |"
        )


def main():
    if sys.argv[1:2] == ["serve"]:
        return serve()
    if sys.argv[1:2] == ["listen"]:
        return listen(sys.argv[2], json.loads(sys.argv[3]))
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tidegate", default="target/release/tidegate")
    parser.add_argument("--streams", type=int, default=50)
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--silence", type=int, default=360)
    return measure(parser.parse_args())


if __name__ == "__main__":
    main()
