#!/usr/bin/env python3
"""How cost grows: CPU per operation against rules, sandboxes, open tunnels, and the length and labels of names.

    cargo build --release && cargo build --release --manifest-path benches/load/Cargo.toml
    sudo benches/growth.py

Writes docs/growth.svg and prints each point. Rounds are interleaved over all points of a plot; medians are drawn, with the
least and the most as a line. Runs in the namespaces of side-by-side.py, the subject on one core, the load on the other.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "benches/load"))

import lab  # noqa: E402
import subjects  # noqa: E402

CONNECT = ["connect-rate", "--workers", "32", "--target", f"{lab.ORIGIN}:18080", "--allow-non-loopback"]
DNS = ["dns", "--count", "1000", "--outstanding", "64"]


def arguments():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--seconds", type=float, default=2)
    p.add_argument("--only", action="append", choices=[plot.name for plot in PLOTS])
    p.add_argument("--tidegate", type=pathlib.Path, default=ROOT / "target/release/tidegate")
    p.add_argument("--load", type=pathlib.Path, default=ROOT / "benches/load/target/release/egress-load")
    p.add_argument("--svg", type=pathlib.Path, default=ROOT / "docs/growth.svg")
    p.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    return p.parse_args()


class Plot:
    """One question: what is varied, over which values, and what each series does there."""

    def __init__(self, name, title, axis, values, series, config=lambda n: "", hold=False):
        self.name, self.title, self.axis, self.values = name, title, axis, values
        self.series, self.config, self.hold = series, config, hold


def rules(n):
    """Names that nobody asks for, beside the ten entries that are asked for."""
    names = "\n".join(f'  "h{i}.x{i % 977}.example.org",' for i in range(n))
    return f"[policy.many]\ndeny = [\n{names}\n]\n"


def sandboxes(n):
    each = (f'[sandbox.s{i}]\npolicies = ["bench"]\n'
            f'identify = [{{ source = "10.{i >> 16}.{i >> 8 & 255}.{i & 255}/32" }}]\n' for i in range(n))
    return "".join(each)


def label(length):
    return "x" * length


def long_name(length):
    """A refused name of that many bytes: the number that the generator writes has four digits."""
    rest, labels = length - len("h0000.blocked.test"), []
    while rest > 1:
        labels.append(label(min(rest - 1, 60)))
        rest -= len(labels[-1]) + 1
    return ".".join(["h{}", *labels, "blocked.test"])


def labelled_name(count):
    return ".".join(["h{}", *["x"] * (count - 3), "blocked.test"])


TUNNEL = ("new tunnel", lambda n: [*CONNECT, "--host", "allowed.test"])
DENIAL = ("denied CONNECT", lambda n: [*CONNECT, "--host", "denied.test", "--expect-deny"])
CACHED = ("DNS cached", lambda n: [*DNS, "--pattern", "h{}.allowed.test", "--prime"])
REFUSED = ("DNS refused", lambda n: [*DNS, "--pattern", "h{}.blocked.test"])

PLOTS = [
    Plot("rules", "CPU per operation against rules", "names in the policy", [10, 100, 1000, 10_000, 100_000, 1_000_000],
         [TUNNEL, DENIAL, CACHED, REFUSED], rules),
    Plot("sandboxes", "… against sandboxes", "sandboxes", [1, 10, 100, 1000, 10_000],
         [TUNNEL, DENIAL, CACHED, REFUSED], sandboxes),
    Plot("tunnels", "… against open tunnels", "tunnels held open", [10, 100, 1000, 9000], [TUNNEL, DENIAL], hold=True),
    Plot("length", "… against the length of a name", "bytes of the name", [20, 40, 80, 160, 250],
         [("DNS refused", lambda n: [*DNS, "--pattern", long_name(n)])]),
    Plot("labels", "… against the labels of a name", "labels", [3, 6, 12, 24, 48, 96],
         [("DNS refused", lambda n: [*DNS, "--pattern", labelled_name(n)])]),
]


class Holder:
    """Keeps so many tunnels open while the block runs."""

    def __init__(self, load, n, seconds):
        self.argv = [str(load), "idle", "--n", str(n), "--hold", str(seconds), "--host", "allowed.test",
                     "--target", f"{lab.ORIGIN}:18080", "--allow-non-loopback"]
        self.n = n

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()

    def open(self, subject):
        self.process = subprocess.Popen([*self.argv, "--proxy", f"127.0.0.1:{subject.port}"], stdout=subprocess.DEVNULL,
                                        stderr=subprocess.DEVNULL, preexec_fn=lab.pinned(lab.LOAD_CORE))
        fds = f"/proc/{subject.process.pid}/fd"
        while len(os.listdir(fds)) < 2 * self.n:
            if self.process.poll() is not None:
                raise RuntimeError("the tunnels could not be opened")
            os.sched_yield()


def measure(a, subject, argv):
    where = ["--server", f"127.0.0.1:{subject.ports['dns_port']}"] if argv[0] == "dns" else [
        "--proxy", f"127.0.0.1:{subject.port}"]
    argv = [str(a.load), *argv, *where, "--pid", str(subject.process.pid), "--duration", str(a.seconds), "--warmup", "0.3"]
    done = subprocess.run(argv, capture_output=True, text=True, preexec_fn=lab.pinned(lab.LOAD_CORE))
    subject.take_audit()
    if done.returncode:
        raise RuntimeError(done.stderr.strip())
    return json.loads(done.stdout)["proxy_cpu_us_per_op"]


def run_plot(a, plot, run_dir):
    """{series: {value: [samples]}}"""
    found = {name: {value: [] for value in plot.values} for name, _ in plot.series}
    template = (ROOT / "benches/load/peers/tidegate.toml").read_text()
    for n in range(a.rounds):
        for value in plot.values:
            subject = subjects.every(a.load, a.tidegate, run_dir)["tidegate"]
            text = template + plot.config(value)
            if plot.name == "rules":
                text = text.replace('policies = ["bench"]\nidentify', 'policies = ["bench", "many"]\nidentify')
            if plot.name == "sandboxes":  # beside sandboxes that are known by their address, none may be everybody
                text = text.replace("{ default = true }",
                                    '{ listener = "127.0.0.1:$port" }, { listener = "127.0.0.1:$dns_port" }')
            conf = run_dir / "conf"
            conf.mkdir(exist_ok=True)
            values = {"run": run_dir, "conf": conf, "origin": lab.ORIGIN, "port": subject.port, **subject.ports}
            (conf / "tidegate.toml").write_text(subjects.string.Template(text).substitute(values))
            subject.files = ()
            subject.start(run_dir, conf)
            holder = Holder(a.load, value, 3600) if plot.hold else None
            try:
                if holder:
                    holder.open(subject)
                for name, argv in plot.series:
                    cost = measure(a, subject, argv(value))
                    found[name][value].append(cost)
                    print(f"  {plot.name} {value:>9,} {n + 1} {name}: {cost:.2f} us", file=sys.stderr, flush=True)
            finally:
                if holder and hasattr(holder, "process"):
                    holder.__exit__()
                subject.stop()
    return found


COLOURS = ["#1b6ca8", "#c2410c", "#15803d", "#7e22ce"]
WIDTH, HEIGHT, LEFT, TOP = 420, 260, 52, 34


def svg(plots):
    """Small multiples: a logarithmic x axis, the cost from zero up."""
    import math
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{2 * WIDTH}" height="{(len(plots) + 1) // 2 * HEIGHT}" '
           'font-family="sans-serif" font-size="11">', '<rect width="100%" height="100%" fill="white"/>']
    for i, (plot, found) in enumerate(plots):
        x0, y0 = i % 2 * WIDTH + LEFT, i // 2 * HEIGHT + TOP
        w, h = WIDTH - LEFT - 20, HEIGHT - TOP - 44
        top = max(max(samples) for points in found.values() for samples in points.values()) * 1.15
        low, high = math.log(plot.values[0]), math.log(plot.values[-1])
        x = lambda value: x0 + w * (math.log(value) - low) / (high - low)  # noqa: E731
        y = lambda cost: y0 + h - h * cost / top  # noqa: E731
        out.append(f'<text x="{x0}" y="{y0 - 18}" font-size="13">{plot.title}</text>')
        for k in range(5):
            cost = top * k / 4
            out.append(f'<line x1="{x0}" y1="{y(cost):.1f}" x2="{x0 + w}" y2="{y(cost):.1f}" stroke="#ddd"/>'
                       f'<text x="{x0 - 6}" y="{y(cost) + 4:.1f}" text-anchor="end">{cost:.3g}</text>')
        for value in plot.values:
            out.append(f'<text x="{x(value):.1f}" y="{y0 + h + 15}" text-anchor="middle">{value:,}</text>')
        out.append(f'<text x="{x0 + w / 2}" y="{y0 + h + 31}" text-anchor="middle">{plot.axis} (CPU in µs upwards)</text>')
        for colour, (name, points), k in zip(COLOURS, found.items(), range(9)):
            line = " ".join(f"{x(v):.1f},{y(statistics.median(s)):.1f}" for v, s in points.items())
            out.append(f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="1.8"/>')
            for value, samples in points.items():
                out.append(f'<line x1="{x(value):.1f}" y1="{y(min(samples)):.1f}" x2="{x(value):.1f}" '
                           f'y2="{y(max(samples)):.1f}" stroke="{colour}"/>'
                           f'<circle cx="{x(value):.1f}" cy="{y(statistics.median(samples)):.1f}" r="2.6" fill="{colour}"/>')
            out.append(f'<text x="{x0 + 90 * k}" y="{y0 - 4}" fill="{colour}">{name}</text>')
    return "\n".join([*out, "</svg>", ""])


def main():
    a = arguments()
    if not a.inside:
        lab.enter(sys.argv)
    run_dir = ROOT / "target/growth"
    run_dir.mkdir(parents=True, exist_ok=True)
    lab.Lab(a.load, run_dir)
    subjects.READY_WITHIN = 120.0  # a million names on a busy machine
    load_before = os.getloadavg()[0]
    plots = []
    for plot in PLOTS:
        if a.only and plot.name not in a.only:
            continue
        found = run_plot(a, plot, run_dir)
        plots.append((plot, found))
        a.svg.write_text(svg(plots))
        print(f"\n| {plot.axis} | " + " | ".join(found) + " |\n|" + "---|" * (len(found) + 1))
        for value in plot.values:
            print(f"| {value:,} | " + " | ".join(f"{statistics.median(found[s][value]):.2f}" for s in found) + " |", flush=True)
    print(f"\nCPU us an operation, medians of {a.rounds} rounds; load average {load_before:.1f} at the start")


if __name__ == "__main__":
    os.environ["PATH"] += ":/usr/sbin:/sbin"
    main()
