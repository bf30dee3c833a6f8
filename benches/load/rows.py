"""What is measured: one row a question, with the subjects that can answer it and the goals that Tidegate has."""

import dataclasses

import lab

PROXIES = ["haproxy-tcp", "tinyproxy", "squid", "tidegate"]
DNS = ["stub", "unbound", "dnsdist", "tidegate"]


@dataclasses.dataclass
class Row:
    title: str
    load: list                       # the generator's command
    subjects: list
    cost: tuple                      # (field, unit) that comes first: CPU or memory per operation
    rate: tuple                      # (field, unit)
    columns: tuple = ()              # further (field, heading)
    goals: tuple = ()                # (field, how, factor, other subject or None for an absolute bound)
    dns: bool = False
    timed: bool = True               # takes --duration
    fresh: bool = False              # start the subject anew for every sample
    awake: bool = False              # keep the cores out of their sleep states
    rounds: int = None               # at most so many
    check: tuple = ()                # (field, least share of the operations): proof that the right thing was done

CPU = ("proxy_cpu_us_per_op", "CPU us")
RATE = ("per_s", "per s")
LAT = (("lat.p50_us", "p50 us"), ("lat.p99_us", "p99 us"))
AT_MOST, AT_LEAST = "at most", "at least"

ROWS = {
    "connect": Row(
        "New tunnels: connect, CONNECT, one small GET, close (32 workers)",
        ["connect-rate", "--workers", "32", "--host", "allowed.test"],
        ["direct", "ref-tcp", "ref-copy", "ref-hybrid", *PROXIES], CPU, RATE, LAT,
        (("cost", AT_MOST, 1.0, "tinyproxy"), ("cost", AT_MOST, 1.15, "ref-copy"),
         ("cost", AT_MOST, 0.75, "tinyproxy"), ("rate", AT_LEAST, 1.3, "tinyproxy"),
         ("rate", AT_LEAST, 1.5, "squid"), ("lat.p99_us", AT_MOST, 1.2, "ref-copy"))),
    "socks5": Row(
        "New tunnels through SOCKS5 (two round trips more than direct, one more than CONNECT)",
        ["connect-rate", "--workers", "32", "--host", "allowed.test", "--socks5"],
        ["tidegate"], CPU, RATE, LAT),
    "denial": Row(
        "Denied CONNECT (32 workers, a new connection each)",
        ["connect-rate", "--workers", "32", "--host", "denied.test", "--expect-deny"],
        ["ref-hybrid", "tinyproxy", "squid", "tidegate"], CPU, RATE, LAT,
        (("cost", AT_MOST, 60, None), ("cost", AT_MOST, 40, None))),
    "http": Row(
        "Plain HTTP: absolute-form GET of 64 bytes over 32 keep-alive connections",
        ["http-rate", "--conns", "32", "--host", "allowed.test"],
        ["direct", "ref-tcp", *PROXIES], CPU, RATE, LAT,
        (("cost", AT_MOST, 0.8, "squid"), ("cost", AT_MOST, 0.4, "squid"), ("rate", AT_LEAST, 2.5, "squid"))),
    "pull": Row(
        "Bulk, origin to client, 4 tunnels",
        ["bulk", "--dir", "pull", "--host", "allowed.test"],
        ["direct", "ref-copy", "ref-copy64", "ref-splice", "ref-hybrid", *PROXIES],
        ("proxy_cpu_s_per_gib", "CPU s/GiB"), ("mib_per_s", "MiB/s"), (),
        (("cost", AT_MOST, 1.11, "ref-copy64"), ("cost", AT_MOST, 0.46, None), ("cost", AT_MOST, 0.25, None),
         ("rate", AT_LEAST, 0.95, "ref-copy64"), ("rate", AT_LEAST, 0.95, "ref-splice")), timed=False),
    "push": Row(
        "Bulk, client to origin, 4 tunnels",
        ["bulk", "--dir", "push", "--host", "allowed.test"],
        ["direct", "ref-copy", "ref-copy64", "ref-splice", "ref-hybrid", *PROXIES],
        ("proxy_cpu_s_per_gib", "CPU s/GiB"), ("mib_per_s", "MiB/s"), (),
        (("cost", AT_MOST, 0.46, None), ("cost", AT_MOST, 0.25, None)), timed=False),
    "latency": Row(
        "Added latency: 1,000 messages a second over 4 tunnels, lower is better",
        ["latency", "--tunnels", "4", "--rate", "1000", "--host", "allowed.test"],
        ["direct", "ref-copy", "ref-hybrid", *PROXIES], CPU, RATE,
        (*LAT, ("sched.p99_us", "p99 from schedule us")),
        (("lat.p50_us", AT_MOST, 1.05, "ref-copy"), ("lat.p99_us", AT_MOST, 1.2, "haproxy-tcp")), awake=True),
    "idle": Row(
        "9,000 idle tunnels, each after one small exchange",
        ["idle", "--n", "9000", "--host", "allowed.test"],
        ["ref-copy", "ref-hybrid", *PROXIES], ("rss_kib_per_tunnel", "RSS KiB"), ("held", "held"),
        (("rss0_kib", "base RSS KiB"), ("idle_cpu_s_per_s", "idle CPU s/s")),
        (("cost", AT_MOST, 8, None), ("cost", AT_MOST, 3.3, None), ("rss0_kib", AT_MOST, 15 * 1024, None)),
        timed=False, fresh=True, rounds=1),
    "dns-blocked": Row(
        "DNS, names that policy refuses, 64 outstanding",
        ["dns", "--pattern", "h{}.blocked.test", "--count", "1000", "--outstanding", "64"],
        DNS, CPU, RATE, LAT,
        (("cost", AT_MOST, 12, None), ("cost", AT_MOST, 1.2, "stub"), ("rate", AT_LEAST, 1.0, "unbound")), dns=True),
    "dns-cached": Row(
        "DNS, 1,000 cached names, 64 outstanding",
        ["dns", "--pattern", "h{}.allowed.test", "--count", "1000", "--outstanding", "64", "--prime"],
        DNS, CPU, RATE, LAT,
        (("cost", AT_MOST, 20, None), ("cost", AT_MOST, 5.0, None), ("rate", AT_LEAST, 1.15, "unbound"),
         ("rate", AT_LEAST, 1.15, "dnsdist")), dns=True, check=("answered", 0.999)),
    "dns-miss": Row(
        "DNS, names never asked before (forwarded), 64 outstanding",
        ["dns", "--pattern", "{sample}x{}.allowed.test", "--count", "9999999", "--outstanding", "64"],
        DNS, CPU, RATE, LAT,
        (("cost", AT_MOST, 40, None), ("rate", AT_LEAST, 2.0, "unbound"), ("rate", AT_LEAST, 0.9, "dnsdist")),
        dns=True, check=("answered", 0.999)),
    "dns-one": Row(
        "DNS, cached, one outstanding: latency, lower is better",
        ["dns", "--pattern", "h{}.allowed.test", "--count", "1000", "--outstanding", "1", "--prime"],
        DNS, CPU, RATE, LAT, (("lat.p50_us", AT_MOST, 1.1, "stub"),), dns=True, awake=True,
        check=("answered", 0.999)),
}


def command(row, subject, sample, seconds):
    """The generator's arguments for one sample."""
    words = [w.replace("{sample}", f"s{sample}") for w in row.load]
    if row.timed:
        words += ["--duration", str(seconds)]
    elif row.load[0] == "bulk":
        words += ["--mib", str(int(1024 * seconds))]
    if row.dns:
        port = subject.ports.get("dns_port", subject.port)
        words += ["--server", f"127.0.0.1:{port}"]
    else:
        words += ["--target", f"{lab.ORIGIN}:18080", "--allow-non-loopback"]
        words += ["--direct"] if subject.argv is None else ["--proxy", f"127.0.0.1:{subject.port}"]
        words += subject.flags
    if subject.process:
        words += ["--pid", str(subject.process.pid)]
    return [*words, "--label", subject.name]
