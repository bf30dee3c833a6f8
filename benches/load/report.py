"""Samples in, Markdown out: medians, ratios, and Tidegate against its goals."""

import statistics

import rows


def at(sample, path):
    """A field of a sample; dots go down."""
    for part in path.split("."):
        sample = sample.get(part) if isinstance(sample, dict) else None
    return sample


def median(samples, path):
    values = [v for v in (at(s, path) for s in samples) if v is not None]
    return statistics.median(values) if values else None


def show(x):
    if x is None:
        return "-"
    if abs(x) >= 1000:
        return f"{x:,.0f}"
    return f"{x:.3g}" if abs(x) < 100 else f"{x:.0f}"


def flag(samples, row):
    """What spoils these samples: operations that failed, were lost, or did not do what the row is about."""
    spoilt = []
    for s in samples:
        ops = max(s.get("ops", s.get("held", 1)), 1)
        bad = s.get("errors", 0) + s.get("lost", 0)
        if bad > ops / 1000:
            spoilt.append(f"{bad / (ops + bad):.1%} failed")
        if s.get("reconnects", 0) > ops / 1000:
            spoilt.append("closes kept connections")
        if row.check and (s.get(row.check[0]) or 0) < ops * row.check[1]:
            spoilt.append(f"{row.check[0]} only {(s.get(row.check[0]) or 0) / ops:.0%}")
        audit = s.get("audit")
        if audit is not None and s["row"] in AUDITED and audit["lines"] < ops:
            spoilt.append(f"audit lines for {audit['lines'] / ops:.0%}")
        if max(s.get("cpu_stolen") or [0]) > 0.05:
            spoilt.append("over 5 % stolen by the host")
    return f" ({'; '.join(sorted(set(spoilt))[:3])})" if spoilt else ""


# Rows in which every operation must have left a line.
AUDITED = ("connect", "socks5", "http")


def field(row, name):
    return {"cost": row.cost[0], "rate": row.rate[0]}.get(name, name)


def table(name, samples):
    """One row's subjects, cheapest first."""
    row = rows.ROWS[name]
    by = {}
    for s in samples:
        if s["row"] == name:
            by.setdefault(s["subject"], []).append(s)
    if not by:
        return
    own = median(by.get("tidegate", []), row.cost[0])
    extra = [h for _, h in row.columns]
    yield f"### {row.title}\n"
    head = ["subject", row.cost[1], "tidegate / it", row.rate[1], *extra, "core 0", "core 1", f"{row.cost[1]} min..max"]
    yield "| " + " | ".join(head) + " |"
    yield "|---" * len(head) + "|"
    for subject, mine in sorted(by.items(), key=lambda kv: median(kv[1], row.cost[0]) or 0):
        cost = median(mine, row.cost[0])
        ratio = f"{own / cost:.2f}" if own is not None and cost else "-"
        costs = [at(s, row.cost[0]) for s in mine]
        busy = [show(statistics.median(b)) for b in zip(*(s["cpu_busy"][:2] for s in mine if "cpu_busy" in s))]
        cells = [f"**{subject}**" if subject == "tidegate" else subject, show(cost) if cost else "-", ratio,
                 show(median(mine, row.rate[0])) + flag(mine, row), *(show(median(mine, c)) for c, _ in row.columns),
                 *(busy or ["-", "-"]), f"{show(min(costs))}..{show(max(costs))}"]
        yield "| " + " | ".join(cells) + " |"
    yield ""


def goals(samples):
    """Tidegate's goals, each with what was seen."""
    yield "### Goals\n"
    yield "| row | goal | seen | |"
    yield "|---|---|---|---|"
    for name, row in rows.ROWS.items():
        of = lambda who: [s for s in samples if s["row"] == name and s["subject"] == who]  # noqa: E731
        for what, how, factor, other in row.goals:
            path = field(row, what)
            own, base = median(of("tidegate"), path), median(of(other), path) if other else 1
            if own is None or not base:
                continue
            seen = own / base
            met = seen <= factor if how == rows.AT_MOST else seen >= factor
            bound = f"{factor:g} x {other}" if other else f"{factor:g}"
            label = {"cost": row.cost[1], "rate": row.rate[1]}.get(what, what)
            yield f"| {name} | {label} {how} {bound} | {show(seen)}{' x' if other else ''} | {'met' if met else 'NOT met'} |"
    yield ""


def start_table(samples):
    by = {}
    for s in samples:
        if s["row"] == "start":
            by.setdefault(s["subject"], []).append(s["ms"])
    if by:
        yield "### Start to ready (exec until /readyz or the port answers)\n"
        yield "| subject | ms | min..max |"
        yield "|---|---|---|"
        for subject, ms in sorted(by.items(), key=lambda kv: statistics.median(kv[1])):
            yield f"| {subject} | {statistics.median(ms):.1f} | {min(ms):.1f}..{max(ms):.1f} |"
        yield ""


def markdown(facts, samples):
    loads = [s["load_average"] for s in samples if "load_average" in s]
    lines = [*facts]
    if loads:
        lines.append(f"- load average before a sample: median {statistics.median(loads):.2f}, "
                     f"{min(loads):.2f} to {max(loads):.2f} (the run itself makes about 2)")
    lines.append("")
    for name in rows.ROWS:
        lines += table(name, samples)
    lines += start_table(samples)
    if any(s["subject"] == "tidegate" for s in samples):
        lines += goals(samples)
    return "\n".join(lines)
