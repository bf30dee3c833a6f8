"""Everything that can be measured: the references, the peers from Debian, and Tidegate."""

import dataclasses
import os
import pathlib
import re
import shutil
import socket
import string
import subprocess
import time
import urllib.error
import urllib.request

import lab

HERE = pathlib.Path(__file__).parent
READY_WITHIN = 20.0


@dataclasses.dataclass
class Subject:
    name: str
    port: int
    argv: list = None                # None: nothing to start (the direct path)
    files: tuple = ()                # configuration templates of load/peers
    flags: tuple = ()                # how the generator must speak to it
    package: str = None              # Debian package that holds it
    version: list = None             # command that tells its version
    udp: bool = False
    readyz: int = None               # port of /readyz, where it has one
    ports: dict = dataclasses.field(default_factory=dict)
    audit: str = None                # file that grows with every operation
    process: subprocess.Popen = None

    @property
    def missing(self):
        return self.argv is not None and shutil.which(self.argv[0]) is None

    def start(self, run_dir, conf_dir):
        if self.argv is None:
            return
        values = {"run": run_dir, "conf": conf_dir, "origin": lab.ORIGIN, "port": self.port, **self.ports}
        for name in self.files:
            text = string.Template((HERE / "peers" / name).read_text()).substitute(values)
            (conf_dir / name).write_text(text)
        argv = [string.Template(a).substitute(values) for a in self.argv]
        with open(run_dir / f"{self.name}.log", "ab") as log:
            self.process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                                            preexec_fn=lab.pinned(lab.SUBJECT_CORE))
        end = time.monotonic() + READY_WITHIN
        while not self.ready():
            if self.process.poll() is not None:
                raise RuntimeError(f"{self.name} ended with {self.process.returncode}: see {log.name}")
            if time.monotonic() > end:
                raise RuntimeError(f"{self.name} not ready in {READY_WITHIN} s: see {log.name}")

    def ready(self):
        if self.readyz:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{self.readyz}/readyz", timeout=1) as reply:
                    return reply.status == 200
            except (OSError, urllib.error.URLError):
                return False
        kind = socket.SOCK_DGRAM if self.udp else socket.SOCK_STREAM
        with socket.socket(socket.AF_INET, kind) as s:
            s.settimeout(0.2)
            try:
                s.connect(("127.0.0.1", self.port))
                if self.udp:
                    s.send(b"\0\1\1\0\0\1\0\0\0\0\0\0\1h\7allowed\4test\0\0\1\0\1")
                    s.recv(1500)
                return True
            except OSError:
                return False

    def stop(self):
        if self.process and self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(5)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        self.process = None

    def take_audit(self):
        """Lines written since the last call, and their bytes; the file is emptied so that it cannot fill the disk."""
        if not self.audit or not os.path.exists(self.audit):
            return None
        lines = 0
        size = os.path.getsize(self.audit)
        with open(self.audit, "rb") as f:
            while block := f.read(1 << 20):
                lines += block.count(b"\n")
        os.truncate(self.audit, 0)
        return {"lines": lines, "bytes": size}

    def describe(self):
        """First line of what the program says about itself."""
        if not self.version:
            return ""
        out = subprocess.run(self.version, capture_output=True, text=True)
        text = out.stdout + out.stderr
        found = re.search(r"\d+\.\d+(\.\d+)?[-\w.+~]*", text)
        return found.group(0) if found else text.strip().split("\n")[0]


# Ports lie below ip_local_port_range of the lab: an outgoing connection can never have taken one.
def every(load, tidegate, run_dir):
    """All subjects by name."""
    relay = [str(load), "relay", "--map", lab.ORIGIN, "--target", f"{lab.ORIGIN}:18080",
             "--allow-non-loopback", "--listen", "127.0.0.1:$port", "--mode"]
    version = [str(load), "--version"]
    subjects = [Subject("direct", 0)]
    for i, mode in enumerate(["tcp", "copy", "copy64", "splice", "hybrid"]):
        flags = ("--no-connect",) if mode == "tcp" else ()
        subjects.append(Subject(f"ref-{mode}", 3100 + i, [*relay, mode], flags=flags, version=version))
    subjects += [
        Subject("haproxy-tcp", 3110, ["haproxy", "-db", "-f", "$conf/haproxy.cfg"], ("haproxy.cfg",),
                ("--no-connect",), "haproxy", ["haproxy", "-v"]),
        Subject("tinyproxy", 3111, ["tinyproxy", "-d", "-c", "$conf/tinyproxy.conf"],
                ("tinyproxy.conf", "tinyproxy.filter"), (), "tinyproxy", ["tinyproxy", "-v"]),
        Subject("squid", 3112, ["squid", "-N", "-f", "$conf/squid.conf"], ("squid.conf",), (), "squid",
                ["squid", "-v"]),
        Subject("stub", 3120, [str(load), "dns-stub", "--listen", "127.0.0.1:$port"], udp=True, version=version),
        Subject("unbound", 3121, ["unbound", "-d", "-c", "$conf/unbound.conf"], ("unbound.conf",),
                package="unbound", version=["unbound", "-V"], udp=True),
        Subject("dnsdist", 3122, ["dnsdist", "--supervised", "-C", "$conf/dnsdist.conf"], ("dnsdist.conf",),
                package="dnsdist", version=["dnsdist", "--version"], udp=True),
        Subject("tidegate", 3130, [str(tidegate), "serve", "--config", "$conf/tidegate.toml"], ("tidegate.toml",),
                version=[str(tidegate), "--version"], readyz=3132,
                ports={"dns_port": 3131, "metrics_port": 3132}, audit=str(run_dir / "audit.jsonl")),
    ]
    return {s.name: s for s in subjects}
