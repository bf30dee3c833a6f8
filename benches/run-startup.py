#!/usr/bin/env python3
"""What `tidegate run` adds to a command that does nothing: the three ways in turn, so that drift hits all of them alike.

usage: benches/run-startup.py [target/release/tidegate] [rounds]

Runs in the working directory, which `run` makes writable; one below $HOME makes it lay the overlay. Only this machine's own
processes are involved: no traffic.
"""

import statistics
import subprocess
import sys
import time

TIDEGATE = sys.argv[1] if len(sys.argv) > 1 else "target/release/tidegate"
ROUNDS = int(sys.argv[2]) if len(sys.argv) > 2 else 60

WAYS = {
    "the command alone": ["true"],
    "run --fs host": [TIDEGATE, "run", "--fs", "host", "--", "true"],
    "run --fs workspace": [TIDEGATE, "run", "--", "true"],
}


def milliseconds(command):
    """One run, from before the fork until the exit."""
    start = time.perf_counter()
    subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True)
    return (time.perf_counter() - start) * 1e3


def main():
    taken = {way: [] for way in WAYS}
    for _ in range(ROUNDS):
        for way, command in WAYS.items():
            taken[way].append(milliseconds(command))
    bare = statistics.median(taken["the command alone"])
    print("| way | median ms | best ms | added (median) ms |")
    print("|---|---:|---:|---:|")
    for way, times in taken.items():
        median = statistics.median(times)
        print(f"| {way} | {median:.2f} | {min(times):.2f} | {median - bare:.2f} |")


if __name__ == "__main__":
    main()
