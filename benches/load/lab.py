"""Two network namespaces and a veth: the subject and the clients in one, the stand-in internet in the other.

A gateway that refuses its own host's addresses (Tidegate's floor) can then be measured on the same path as
everything else. Everything lives in namespaces of this process tree, so nothing is left behind on the machine.
"""

import os
import pathlib
import subprocess
import sys

GATEWAY = "198.51.100.1"
ORIGIN = "198.51.100.80"
SUBJECT_CORE, LOAD_CORE = 0, 1

# Tens of thousands of short connections a second would else run out of ports and of backlog.
SYSCTLS = {
    "net/ipv4/ip_local_port_range": "10240 65000",
    "net/ipv4/tcp_tw_reuse": "1",
    "net/core/somaxconn": "65535",
    "net/ipv4/tcp_max_syn_backlog": "65535",
}


def enter(argv):
    """Run this program again inside fresh network, mount and process namespaces; never returns."""
    if os.geteuid() != 0:
        sys.exit("side-by-side: needs root, for network namespaces and for peers that change their user")
    if len(os.sched_getaffinity(0)) < 2:
        sys.exit("side-by-side: needs two cores: one for the subject, one for the generator and the origin")
    unshare = ["unshare", "--net", "--mount", "--pid", "--fork", "--mount-proc", "--kill-child"]
    os.execvp("unshare", [*unshare, sys.executable, *argv, "--inside"])


def pinned(core):
    """A preexec_fn: run on this core only."""
    return lambda: os.sched_setaffinity(0, {core})


def run(*argv):
    subprocess.run(argv, check=True)


def tune():
    for name, value in SYSCTLS.items():
        path = pathlib.Path("/proc/sys", name)
        if path.exists():  # some are the machine's alone
            path.write_text(value)


class Lab:
    """The wired pair of namespaces, with the origin and the DNS stub running in the outer one."""

    def __init__(self, load, run_dir):
        self.world = subprocess.Popen(["unshare", "--net", "sleep", "infinity"])
        self.run_dir = run_dir
        run("ip", "link", "set", "lo", "up")
        self._wait_for_namespace()
        run("ip", "link", "add", "up0", "type", "veth", "peer", "name", "w0", "netns", str(self.world.pid))
        run("ip", "address", "add", f"{GATEWAY}/24", "dev", "up0")
        run("ip", "link", "set", "up0", "up")
        self.outside("ip", "link", "set", "lo", "up").wait()
        self.outside("ip", "address", "add", f"{ORIGIN}/24", "dev", "w0").wait()
        self.outside("ip", "link", "set", "w0", "up").wait()
        tune()
        self.outside(sys.executable, "-c", "import sys; sys.path.insert(0, sys.argv[1]); import lab; lab.tune()",
                     str(pathlib.Path(__file__).parent)).wait()
        self._names()
        self.outside(load, "origin", "--http", f"{ORIGIN}:18080", "--tls", f"{ORIGIN}:18443",
                     "--raw", f"{ORIGIN}:18081", "--allow-non-loopback")
        self.outside(load, "dns-stub", "--listen", f"{ORIGIN}:53", "--ip", ORIGIN, "--allow-non-loopback")

    def outside(self, *argv):
        """Start a program in the stand-in internet, on the generator's core."""
        enter_world = ["nsenter", "--target", str(self.world.pid), "--net"]
        return subprocess.Popen([*enter_world, *map(str, argv)], preexec_fn=pinned(LOAD_CORE),
                                stderr=subprocess.DEVNULL)

    def _wait_for_namespace(self):
        own = os.readlink("/proc/self/ns/net")
        while os.readlink(f"/proc/{self.world.pid}/ns/net") == own:
            os.sched_yield()

    def _names(self):
        """Peers find the origin by the hosts file, Tidegate by DNS: both give one address at once."""
        hosts, resolv = self.run_dir / "hosts", self.run_dir / "resolv.conf"
        hosts.write_text(f"127.0.0.1 localhost\n{ORIGIN} allowed.test\n")
        resolv.write_text(f"nameserver {ORIGIN}\n")
        for path in (hosts, resolv):
            path.chmod(0o644)
            run("mount", "--bind", str(path), f"/etc/{path.name}")


class Awake:
    """Keeps both cores out of their sleep states while a latency row runs, by spinners that yield to everything
    (SCHED_IDLE, nice 19, so that the generator counts their time as idle). In a virtual machine a core that
    sleeps pays tens of microseconds a wake-up, which hides what the subject costs."""

    SPIN = ("import os; os.nice(19); os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))\n"
            "while True: pass")

    def __enter__(self):
        self.spinners = [subprocess.Popen([sys.executable, "-c", self.SPIN], preexec_fn=pinned(core))
                         for core in (SUBJECT_CORE, LOAD_CORE)]

    def __exit__(self, *_):
        for spinner in self.spinners:
            spinner.kill()
            spinner.wait()
