//! Devices and switches of the kernel that are no sockets: tun, io_uring, /proc/sys.

use std::fs::{self, OpenOptions};

use super::ground::Ground;
use super::{Line, socket};
use crate::sys;

pub(super) fn lines(ground: &Ground<'_>) -> Vec<Line> {
    vec![tun(ground), rings(ground), switches()]
}

/// A tun device ends in the process that holds it, which is in this namespace.
fn tun(ground: &Ground<'_>) -> Line {
    const WAY: &str = "a tun device";
    match OpenOptions::new().read(true).write(true).open("/dev/net/tun") {
        Err(error) => Line::contained(WAY, format!("/dev/net/tun: {}", socket::told(&error))),
        Ok(_) if ground.is_sealed() => {
            Line::contained(WAY, format!("it can be opened, and ends in its own process; {}", ground.why()))
        }
        Ok(_) => Line::unproven(WAY, format!("it can be opened; {}", ground.why())),
    }
}

/// Operations in a ring pass seccomp filters: sockets made so are in this namespace all the same, but for AF_VSOCK.
fn rings(ground: &Ground<'_>) -> Line {
    const WAY: &str = "io_uring";
    let switched_off =
        fs::read_to_string("/proc/sys/kernel/io_uring_disabled").is_ok_and(|value| value.trim() == "2");
    if switched_off {
        return Line::contained(WAY, "the kernel has it switched off (kernel.io_uring_disabled = 2)");
    }
    if let Some(refusal) = sys::refusal_of_rings() {
        return Line::contained(WAY, format!("no ring can be made: {}", socket::told(&refusal)));
    }
    Line::unproven(
        WAY,
        format!("the kernel has it; a ring's sockets pass filters of system calls; {}", ground.why()),
    )
}

/// Switches that hold for the whole machine: `core_pattern` starts a program outside.
fn switches() -> Line {
    const WAY: &str = "switches of the kernel (core_pattern, modprobe, sysrq)";
    const SWITCHES: [&str; 4] = [
        "/proc/sys/kernel/core_pattern",
        "/proc/sys/kernel/modprobe",
        "/proc/sysrq-trigger",
        "/proc/sys/net/ipv4/ip_forward",
    ];
    // Opened, and nothing is written.
    let open = SWITCHES.into_iter().find(|switch| OpenOptions::new().write(true).open(switch).is_ok());
    match open {
        Some(switch) => Line::escaped(WAY, format!("{switch} can be written")),
        None => Line::contained(WAY, "none can be opened for writing"),
    }
}
