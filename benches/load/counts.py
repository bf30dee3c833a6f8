"""System calls per operation: a cost that does not drift with the machine."""

import signal
import subprocess
import time


class Counted:
    """Counts the system calls of a subject, threads and children included, while the block runs (strace -c)."""

    def __init__(self, pid, out):
        self.pid, self.out = pid, out

    def __enter__(self):
        self.strace = subprocess.Popen(["strace", "-c", "-f", "-U", "calls,name", "-o", str(self.out),
                                        "-p", str(self.pid)], stderr=subprocess.PIPE, text=True)
        self.strace.stderr.readline()  # "Process N attached"
        time.sleep(0.2)  # the other threads are attached right after the first
        return self

    def __exit__(self, *_):
        self.strace.send_signal(signal.SIGINT)
        self.strace.wait()

    def calls(self):
        """Calls by name."""
        found = {}
        for line in self.out.read_text().splitlines():
            words = line.split()
            if len(words) == 2 and words[0].isdigit() and words[1] != "total":
                found[words[1]] = int(words[0])
        return found


def per_operation(calls, ops):
    """One line: the total and what it is made of, most frequent first; what one in fifty operations makes is left out."""
    ops = max(ops, 1)
    parts = sorted(((n / ops, name) for name, n in calls.items()), reverse=True)
    shown = ", ".join(f"{name} {n:.2f}" for n, name in parts if n >= 0.02)
    return f"{sum(calls.values()) / ops:.1f}: {shown}"
