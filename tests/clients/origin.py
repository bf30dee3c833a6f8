"""A stand-in web host for real clients: a git server, a package index, and a page that says what it was asked.

usage: origin.py PORT CERTIFICATE KEY FOLDER

FOLDER holds `git/` (bare repositories, served by git's own CGI) and `simple/` (a package index in files). With `-` as
CERTIFICATE and KEY it speaks plain HTTP. It prints `ready` once it listens.
"""

import http.server
import json
import os
import pathlib
import socket
import ssl
import subprocess
import sys
import urllib.parse


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    root: pathlib.Path

    def do_GET(self):
        url = urllib.parse.urlsplit(self.path)
        if url.path.startswith("/git/"):
            self.serve_git(url)
        elif url.path.startswith("/simple/") or url.path.startswith("/files/"):
            self.serve_file(url.path)
        else:
            self.serve_echo()

    do_POST = do_GET

    def body(self) -> bytes:
        if self.headers.get("Transfer-Encoding", "").lower() == "chunked":
            parts = []
            while size := int(self.rfile.readline().split(b";")[0], 16):
                parts.append(self.rfile.read(size))
                self.rfile.readline()
            self.rfile.readline()
            return b"".join(parts)
        return self.rfile.read(int(self.headers.get("Content-Length", 0)))

    def answer(self, status: int, kind: str, body: bytes):
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def serve_echo(self):
        told = {"host": self.headers.get("Host"), "path": self.path, "method": self.command}
        told["body"] = self.body().decode("latin-1")
        self.answer(200, "application/json", json.dumps(told).encode())

    def serve_file(self, path: str):
        wanted = (self.root / path.lstrip("/")).resolve()
        if wanted.is_dir():
            wanted = wanted / "index.html"
        if self.root not in wanted.parents or not wanted.is_file():
            return self.answer(404, "text/plain", b"no such file\n")
        kind = "text/html" if wanted.suffix == ".html" else "application/octet-stream"
        self.answer(200, kind, wanted.read_bytes())

    def serve_git(self, url):
        environment = {
            **os.environ,
            "GIT_PROJECT_ROOT": str(self.root / "git"),
            "GIT_HTTP_EXPORT_ALL": "1",
            "PATH_INFO": url.path.removeprefix("/git"),
            "QUERY_STRING": url.query,
            "REQUEST_METHOD": self.command,
            "CONTENT_TYPE": self.headers.get("Content-Type", ""),
            "HTTP_CONTENT_ENCODING": self.headers.get("Content-Encoding", ""),
            "GIT_PROTOCOL": self.headers.get("Git-Protocol", ""),
        }
        ran = subprocess.run(
            ["git", "http-backend"], input=self.body(), env=environment, capture_output=True, check=True
        )
        head, _, body = ran.stdout.partition(b"\r\n\r\n")
        fields = dict(line.split(": ", 1) for line in head.decode("latin-1").split("\r\n"))
        status = int(fields.pop("Status", "200").split()[0])
        self.send_response(status)
        for name, value in fields.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


class Server(http.server.ThreadingHTTPServer):
    address_family = socket.AF_INET6
    daemon_threads = True

    def server_bind(self):
        self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        super().server_bind()


def main():
    port, certificate, key, folder = sys.argv[1:]
    Handler.root = pathlib.Path(folder).resolve()
    server = Server(("::", int(port)), Handler)
    if certificate != "-":
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, key)
        server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    print("ready", flush=True)
    server.serve_forever()


main()
