#!/usr/bin/env python3
"""What ten thousand sandboxes cost a running gateway: memory, one that is added or removed, and a reload under traffic.

usage: benches/many-sandboxes.py [target/release/tidegate] [sandboxes]

Everything is on loopback: clients whose attempts are denied, which tell whether accepting pauses, and one tunnel to an
echo server (by `host_port`) of a sandbox that nothing is changed of, which must live through all of it.
"""

import hashlib
import http.client
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time

TIDEGATE = sys.argv[1] if len(sys.argv) > 1 else "target/release/tidegate"
SANDBOXES = int(sys.argv[2]) if len(sys.argv) > 2 else 10_000
POLICIES = 50
CHANGES = 200
RELOADS = 20

PROXY = ("127.0.0.1", 13128)


class Local(http.client.HTTPConnection):
    """HTTP over a unix socket."""

    def __init__(self, path):
        super().__init__("tidegate")
        self.path = path

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.connect(self.path)


class Gateway:
    """A gateway with so many sandboxes in its config."""

    def __init__(self, folder, sandboxes, echo):
        self.folder = folder
        self.admin = os.path.join(folder, "admin", "admin.sock")
        os.makedirs(os.path.dirname(self.admin), mode=0o700, exist_ok=True)
        self.config = os.path.join(folder, "tidegate.toml")
        self.text = config(folder, self.admin, sandboxes, echo)
        self.write(self.text)
        self.process = subprocess.Popen([TIDEGATE, "serve", "--config", self.config])
        while True:
            try:
                if self.ask("GET", "/v1/ready")[0] == 200:
                    return
            except (FileNotFoundError, ConnectionRefusedError):
                if self.process.poll() is not None:
                    sys.exit("the gateway did not start")
            time.sleep(0.01)

    def write(self, text):
        beside = self.config + ".new"
        with open(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
            file.write(text)
        os.rename(beside, self.config)

    def ask(self, method, path, body=None):
        connection = Local(self.admin)
        connection.request(method, path, body and json.dumps(body))
        response = connection.getresponse()
        return response.status, response.read()

    def resident(self):
        """MiB, once nothing is freed any more."""
        time.sleep(1)
        with open(f"/proc/{self.process.pid}/status") as status:
            return next(int(line.split()[1]) / 1024 for line in status if line.startswith("VmRSS"))

    def cpu(self):
        """Milliseconds of CPU so far."""
        with open(f"/proc/{self.process.pid}/stat") as stat:
            fields = stat.read().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) * 1e3 / os.sysconf("SC_CLK_TCK")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()


def config(folder, admin, sandboxes, echo):
    lines = [
        f'[listen]\nproxy = ["{PROXY[0]}:{PROXY[1]}"]\nadmin = "unix:{admin}"',
        f'[state]\npath = "{folder}/state"\n[audit]\npath = "{folder}/audit.jsonl"',
        f'[internal.echo]\nhost = "echo.corp.example"\nhost_port = "127.0.0.1:{echo}"',
        f'[sandbox.fixed]\ninternal = ["echo"]\nidentify = [{{ token_sha256 = "{digest("fixed")}" }}]',
        '[sandbox.fixed.limits]\nconnections = "unlimited"\nnew_connections_per_second = "unlimited"',
    ]
    for policy in range(POLICIES if sandboxes else 0):
        hosts = ", ".join(f'"h{host}.p{policy}.example.org"' for host in range(20))
        lines.append(f"[policy.p{policy}]\nallow = [{hosts}]")
    for number in range(sandboxes):
        named = ", ".join(f'"p{(number + place * 7) % POLICIES}"' for place in range(5))
        lines.append(
            f"[sandbox.s{number}]\npolicies = [{named}]\n"
            f'identify = [{{ token_sha256 = "{digest(f"s{number}")}" }}]\nlabels = {{ workspace = "w-{number}" }}'
        )
    return "\n".join(lines) + "\n"


def digest(token):
    return hashlib.sha256(token.encode()).hexdigest()


def connect(to):
    """A tunnel of the fixed sandbox, or a refusal: the socket and the status."""
    client = socket.create_connection(PROXY)
    client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    client.sendall(f"CONNECT {to} HTTP/1.1\r\nProxy-Authorization: Bearer fixed\r\n\r\n".encode())
    answer = b""
    while b"\r\n\r\n" not in answer:
        more = client.recv(4096)
        if not more:
            break
        answer += more
    return client, answer[9:12]


class Traffic(threading.Thread):
    """Clients one after the other; the longest that one of them waited since it was last asked."""

    def __init__(self, port):
        super().__init__(daemon=True)
        self.longest, self.count, self.over = 0.0, 0, False
        self.tunnel, status = connect(f"echo.corp.example:{port}")
        assert status == b"200", status

    def run(self):
        while not self.over:
            begun = time.perf_counter()
            client, status = connect("denied.example:443")
            client.close()
            assert status == b"403", status
            self.tunnel.sendall(b"x")
            assert self.tunnel.recv(1) == b"x", "the tunnel was dropped"
            self.longest = max(self.longest, time.perf_counter() - begun)
            self.count += 1

    def longest_wait(self):
        longest, self.longest = self.longest * 1e3, 0.0
        return longest


def echo_server():
    listener = socket.create_server(("127.0.0.1", 0))

    def serve():
        while True:
            client, _ = listener.accept()
            threading.Thread(target=carry, args=(client,), daemon=True).start()

    def carry(client):
        while data := client.recv(4096):
            client.sendall(data)

    threading.Thread(target=serve, daemon=True).start()
    return listener.getsockname()[1]


def each(gateway, work, count):
    """Does something so many times: the milliseconds of each, and of the gateway's CPU for each."""
    times, before = [], gateway.cpu()
    for number in range(count):
        begun = time.perf_counter()
        status, answer = work(number)
        times.append((time.perf_counter() - begun) * 1e3)
        assert status in (200, 201), answer
    return sorted(times), (gateway.cpu() - before) / count


def changes(gateway):
    def add(number):
        return gateway.ask("POST", "/v1/sandboxes", {"id": f"guest-{number}", "policies": ["p1", "p2"]})

    def reload(number):
        gateway.write(f"{gateway.text}# {number}\n")
        return gateway.ask("POST", "/v1/reload")

    yield "one is added", each(gateway, add, CHANGES)
    yield "one is removed", each(
        gateway, lambda number: gateway.ask("DELETE", f"/v1/sandboxes/guest-{number}"), CHANGES
    )
    yield "a reload", each(gateway, reload, RELOADS)


def main():
    echo = echo_server()
    with tempfile.TemporaryDirectory() as folder, Gateway(folder, 0, echo) as empty:
        least = empty.resident()
    with tempfile.TemporaryDirectory() as folder, Gateway(folder, SANDBOXES, echo) as gateway:
        full = gateway.resident()
        print(f"resident, MiB: {least:.1f} empty, {full - least:.1f} more with {SANDBOXES} sandboxes\n")
        print("| ms | median | p99 | worst | CPU |\n|---|---:|---:|---:|---:|")
        for what, (times, cpu) in changes(gateway):
            p99 = times[min(len(times) - 1, len(times) * 99 // 100)]
            print(f"| {what} | {statistics.median(times):.2f} | {p99:.2f} | {times[-1]:.2f} | {cpu:.2f} |")
        print(f"\nresident after it: {gateway.resident() - least:.1f} more than empty")
        traffic = Traffic(echo)
        traffic.start()
        time.sleep(2)
        waits = {"alone": traffic.longest_wait()}
        waits |= {what: traffic.longest_wait() for what, _ in changes(gateway)}
        traffic.over = True
        traffic.join()
        print("the longest that a client waited, ms: " + ", ".join(f"{what} {ms:.1f}" for what, ms in waits.items()))
        print(f"the tunnel lived through all of it, for {traffic.count} bytes")


if __name__ == "__main__":
    main()
