#!/usr/bin/env python3
"""Measure Tidegate beside other gateways on this machine, in interleaved rounds, and print the ratios.

    cargo build --release
    cargo build --release --manifest-path benches/load/Cargo.toml
    sudo benches/side-by-side.py                  # every row, five rounds
    sudo benches/side-by-side.py --only connect --only dns-cached --rounds 3

The subject has core 0, the generator, the origin and the DNS stub have core 1. Rounds go A B C A B C, so that a
machine that slows down slows everybody down. CPU per operation comes first: rates move with the machine.
Peers come from Debian: `--install` gets those that are missing by apt-get (which may start their services).
"""

import argparse
import json
import os
import pathlib
import platform
import shutil
import subprocess
import sys
import time
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "benches" / "load"))
sys.dont_write_bytecode = True

import counts  # noqa: E402
import lab  # noqa: E402
import report  # noqa: E402
import rows  # noqa: E402
import subjects  # noqa: E402


def arguments():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--only", action="append", choices=[*rows.ROWS, "start"], help="this row only (repeat for more)")
    p.add_argument("--subject", action="append", help="this subject only (repeat for more)")
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--seconds", type=float, default=4, help="length of a sample; bulk moves a GiB for each")
    p.add_argument("--results", type=pathlib.Path, help="folder for samples and the report")
    p.add_argument("--tidegate", type=pathlib.Path, default=ROOT / "target/release/tidegate")
    p.add_argument("--load", type=pathlib.Path, default=ROOT / "benches/load/target/release/egress-load")
    p.add_argument("--syscalls", action="store_true", help="count system calls instead (strace); times mean nothing")
    p.add_argument("--perf", action="store_true", help="also record each sample's subject with perf, for perf report")
    p.add_argument("--install", action="store_true", help="apt-get install the peers that are missing")
    p.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    a = p.parse_args()
    a.results = (a.results or ROOT / "target/side-by-side" / time.strftime("%Y%m%d-%H%M%S")).resolve()
    return a


def chosen(a, everything):
    """Subjects that this run wants and has; says what is missing and how to get it."""
    wanted = {n for r in a.only or rows.ROWS if r in rows.ROWS for n in rows.ROWS[r].subjects} | {"tidegate"}
    if a.subject:
        wanted &= set(a.subject)
    missing = [s for s in everything.values() if s.name in wanted and s.missing]
    packages = [s.package for s in missing if s.package]
    if packages and a.install:
        subprocess.run(["apt-get", "install", "-y", "--no-install-recommends", *packages], check=True)
        missing = [s for s in missing if s.missing]
    for s in missing:
        how = f"apt-get install {s.package}" if s.package else "cargo build --release"
        print(f"side-by-side: without {s.name}: {s.argv[0]} is not there ({how})", file=sys.stderr)
    return {n: s for n, s in everything.items() if n in wanted and s not in missing}


class Run:
    def __init__(self, a):
        self.a = a
        self.run_dir, self.conf_dir = a.results / "run", a.results / "conf"
        for d in (self.run_dir, self.conf_dir):
            d.mkdir(parents=True, exist_ok=True)
        self.run_dir.chmod(0o1777)  # squid gives up root and writes here
        self.subjects = chosen(a, subjects.every(a.load, a.tidegate, self.run_dir))
        self.samples = []
        self.out = open(a.results / "samples.jsonl", "a")

    def row(self, name):
        row = rows.ROWS[name]
        present = [self.subjects[n] for n in row.subjects if n in self.subjects]
        alive = []
        for s in present:
            try:
                s.start(self.run_dir, self.conf_dir)
                alive.append(s)
            except RuntimeError as e:
                print(f"side-by-side: {e}", file=sys.stderr)
        try:
            for n in range(1 if self.a.syscalls else min(self.a.rounds, row.rounds or self.a.rounds)):
                for s in alive:
                    if self.a.syscalls:
                        self.count(name, row, s)
                    else:
                        self.sample(name, row, s, n)
        finally:
            for s in present:
                s.stop()

    def sample(self, name, row, s, n):
        if row.fresh:
            s.stop()
            s.start(self.run_dir, self.conf_dir)
        s.take_audit()
        argv = [str(self.a.load), *rows.command(row, s, f"{os.getpid()}{len(self.samples)}", self.a.seconds)]
        load_before = os.getloadavg()[0]
        if self.a.perf and s.process:
            data = self.a.results / f"perf-{name}-{s.name}.data"
            argv = ["perf", "record", "-q", "-F", "1999", "-g", "-o", str(data), "-p", str(s.process.pid), "--", *argv]
        done = subprocess.run(argv, capture_output=True, text=True, preexec_fn=lab.pinned(lab.LOAD_CORE))
        if done.returncode:
            print(f"side-by-side: {name} {s.name}: {done.stderr.strip()}", file=sys.stderr)
            return
        sample = {"row": name, "subject": s.name, "round": n, "load_average": load_before,
                  **json.loads(done.stdout), "audit": s.take_audit()}
        if s.readyz:  # metrics are scraped, so that their cost is in the picture
            with urllib.request.urlopen(f"http://127.0.0.1:{s.readyz}/metrics", timeout=5) as reply:
                sample["metrics_bytes"] = len(reply.read())
        self.samples.append(sample)
        self.out.write(json.dumps(sample) + "\n")
        self.out.flush()
        cost = report.at(sample, row.cost[0])
        print(f"  {name} {n + 1} {s.name}: {cost:g} {row.cost[1]}, {report.at(sample, row.rate[0]):,} {row.rate[1]}"
              f"{report.flag([sample], row)}", file=sys.stderr)

    def count(self, name, row, s):
        """System calls per operation of one subject; the generator runs without warm-up, so that all is counted."""
        if s.process is None or name == "idle":
            return
        argv = rows.command(row, s, f"{os.getpid()}c", self.a.seconds)
        if row.timed and name != "latency":
            argv += ["--warmup", "0"]
        with counts.Counted(s.process.pid, self.run_dir / "strace.txt") as counted:
            done = subprocess.run([str(self.a.load), *argv], capture_output=True, text=True,
                                  preexec_fn=lab.pinned(lab.LOAD_CORE))
        s.take_audit()
        if done.returncode:
            print(f"side-by-side: {name} {s.name}: {done.stderr.strip()}", file=sys.stderr)
            return
        seen = json.loads(done.stdout)
        ops = seen["mib"] / 1024 if "mib" in seen else seen["ops"]
        print(f"- {name}, {s.name}, {'a GiB' if 'mib' in seen else 'an operation'}: "
              f"{counts.per_operation(counted.calls(), ops)}", flush=True)

    def start(self):
        """Milliseconds from exec to ready (/readyz where there is one, else the port answers)."""
        for n in range(max(self.a.rounds, 5)):
            for s in self.subjects.values():
                if s.argv is None:
                    continue
                begin = time.monotonic()
                try:
                    s.start(self.run_dir, self.conf_dir)
                except RuntimeError as e:
                    print(f"side-by-side: {e}", file=sys.stderr)
                    continue
                sample = {"row": "start", "subject": s.name, "round": n, "ms": (time.monotonic() - begin) * 1e3}
                s.stop()
                self.samples.append(sample)
                self.out.write(json.dumps(sample) + "\n")


def facts(run):
    """The machine and the versions, as lines of Markdown."""
    model = next((l.split(":")[1].strip() for l in open("/proc/cpuinfo") if l.startswith("model name")), "?")
    memory = int(open("/proc/meminfo").readline().split()[1]) / 2**20
    os_name = platform.freedesktop_os_release().get("PRETTY_NAME", "?")
    yield f"- machine: {os.cpu_count()} x {model}, {memory:.0f} GiB, Linux {platform.release()}, {os_name}"
    yield f"- {time.strftime('%Y-%m-%d %H:%M')} UTC, load average {' '.join(f'{x:.2f}' for x in os.getloadavg())}"
    versions = {s.name: s.describe() for s in run.subjects.values() if s.package or s.name == "tidegate"}
    commit = subprocess.run(["git", "-C", str(ROOT), "describe", "--always", "--dirty"], capture_output=True, text=True)
    yield "- versions: " + ", ".join(f"{n} {v}" for n, v in versions.items()) + f"; commit {commit.stdout.strip()}"
    if run.a.tidegate.exists():
        yield f"- binary: {run.a.tidegate.stat().st_size / 1e6:.2f} MB"
    yield f"- {run.a.rounds} interleaved rounds, {run.a.seconds:g} s a sample, medians"


def main():
    a = arguments()
    if not a.inside:
        lab.enter(sys.argv)
    if not a.load.exists():
        sys.exit(f"side-by-side: {a.load} is not there: "
                 "cargo build --release --manifest-path benches/load/Cargo.toml")
    run = Run(a)
    begin = list(facts(run))
    lab.Lab(a.load, run.run_dir)
    for name in a.only or [*rows.ROWS, "start"]:
        print(f"{name}:", file=sys.stderr)
        if name == "start":
            a.syscalls or run.start()
        elif rows.ROWS[name].awake:
            with lab.Awake():
                run.row(name)
        else:
            run.row(name)
    if a.syscalls:
        return
    text = report.markdown(begin, run.samples)
    (a.results / "report.md").write_text(text)
    print(text)
    print(f"side-by-side: samples and report in {a.results}", file=sys.stderr)


if __name__ == "__main__":
    os.environ["PATH"] += ":/usr/sbin:/sbin"
    shutil.which("unshare") or sys.exit("side-by-side: needs unshare and nsenter (util-linux)")
    main()
