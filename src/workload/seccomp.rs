//! The seccomp filter of the workload: what the kernel refuses it, whatever it runs.
//!
//! The rest of the sandbox holds without it; it shuts what namespaces do not (AF_VSOCK, io_uring, keyrings) and takes away
//! the parts of the kernel in which ways out of namespaces have been found.

use std::io;

use nix::libc;

use crate::sys::{self, Instruction};

/// What happens to a system call (linux/seccomp.h).
const KILL_PROCESS: u32 = 0x8000_0000;
const ERRNO: u32 = 0x0005_0000;
const ALLOW: u32 = 0x7fff_0000;

/// Offsets in `struct seccomp_data`.
const NUMBER: u32 = 0;
const ARCH: u32 = 4;

/// `AUDIT_ARCH_*` of linux/audit.h: machine, 64 bits, little endian.
#[cfg(target_arch = "x86_64")]
const NATIVE: u32 = 0xc000_003e;
#[cfg(target_arch = "aarch64")]
const NATIVE: u32 = 0xc000_00b7;

/// Set in the numbers of the x32 ABI, which the x86-64 tables below would not know (`__X32_SYSCALL_BIT`).
const X32: u32 = 0x4000_0000;

const CLONE_NEWUSER: u32 = 0x1000_0000;

/// fchmodat2(2), Linux 6.6; one number everywhere.
const SYS_FCHMODAT2: i64 = 452;

/// terminals(4): puts input in a terminal's queue as if it were typed there.
const TIOCSTI: u32 = 0x5412;
/// ioctl_console(2): its paste does the same on a console.
const TIOCLINUX: u32 = 0x541c;

/// Address families that stay (linux/socket.h). Others leave the namespace (AF_VSOCK is not bound to one), or are doors to
/// rarely visited code.
const FAMILIES: [u32; 4] = [
    libc::AF_UNIX as u32,
    libc::AF_INET as u32,
    libc::AF_INET6 as u32,
    // NETLINK_ROUTE alone: getifaddrs(3) and most event loops use it.
    libc::AF_NETLINK as u32,
];

/// Refused with EPERM.
const REFUSED: &[(i64, &str)] = &[
    (libc::SYS_add_key, "keyrings are bound to users, not to namespaces"),
    (libc::SYS_keyctl, "keyrings are bound to users, not to namespaces"),
    (libc::SYS_request_key, "keyrings are bound to users, not to namespaces"),
    (libc::SYS_bpf, "programs in the kernel"),
    (libc::SYS_perf_event_open, "programs and tracing in the kernel"),
    (libc::SYS_userfaultfd, "holds the kernel in the middle of a copy, which exploits rely on"),
    (libc::SYS_pidfd_getfd, "takes descriptors of other processes"),
    (libc::SYS_open_by_handle_at, "opens files past the mount tree"),
    (libc::SYS_init_module, "code in the kernel"),
    (libc::SYS_finit_module, "code in the kernel"),
    (libc::SYS_delete_module, "code in the kernel"),
    (libc::SYS_kexec_load, "another kernel"),
    (libc::SYS_kexec_file_load, "another kernel"),
];

/// Refused with ENOSYS, as by a kernel without them: libraries then use the older way.
const UNKNOWN: &[(i64, &str)] = &[
    (libc::SYS_io_uring_setup, "its operations make sockets past this filter"),
    (libc::SYS_io_uring_enter, "its operations make sockets past this filter"),
    (libc::SYS_io_uring_register, "its operations make sockets past this filter"),
    (libc::SYS_clone3, "its flags lie in memory, where no filter sees CLONE_NEWUSER"),
    (libc::SYS_openat2, "its mode lies in memory, where no filter sees S_ISUID"),
];

/// Calls that give a file a mode, and which of their arguments it is.
#[cfg(target_arch = "x86_64")]
const MODES: [(i64, u32); 7] = [
    (libc::SYS_chmod, 1),
    (libc::SYS_fchmod, 1),
    (libc::SYS_fchmodat, 2),
    (SYS_FCHMODAT2, 2),
    (libc::SYS_creat, 1),
    (libc::SYS_mknod, 1),
    (libc::SYS_mknodat, 2),
];
#[cfg(target_arch = "aarch64")]
const MODES: [(i64, u32); 4] =
    [(libc::SYS_fchmod, 1), (libc::SYS_fchmodat, 2), (SYS_FCHMODAT2, 2), (libc::SYS_mknodat, 2)];

/// Calls that give a file a mode where they make one: their flags, and the mode.
#[cfg(target_arch = "x86_64")]
const OPENINGS: [(i64, u32, u32); 2] = [(libc::SYS_open, 1, 2), (libc::SYS_openat, 2, 3)];
#[cfg(target_arch = "aarch64")]
const OPENINGS: [(i64, u32, u32); 1] = [(libc::SYS_openat, 2, 3)];

/// The flags that make a file; without them there is no mode, whatever stands there (open(2)).
const MAKES: u32 = (libc::O_CREAT | libc::O_TMPFILE & !libc::O_DIRECTORY) as u32;

/// The bits of a file's mode that make others who execute it its owner (inode(7)): a workload that left such a file in
/// its workspace would give them to whoever is on this machine. What it makes belongs, on the disk, to the owner of the
/// workspace: where root starts the run, that may be root.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Becoming {
    /// No file for its owner, none for its group.
    Nobody,
    /// None for its owner. Folders that pass their group on are usual where people share a workspace, and no filter can
    /// tell a folder from a file.
    Group,
}

impl Becoming {
    const fn refused(self) -> u32 {
        match self {
            Self::Nobody => libc::S_ISUID | libc::S_ISGID,
            Self::Group => libc::S_ISUID,
        }
    }
}

/// Puts the filter in force for this process and all that it starts.
pub(super) fn install(becoming: Becoming) -> io::Result<()> {
    sys::install_filter(&program(becoming))
}

/// The filter as a program.
fn program(becoming: Becoming) -> Vec<Instruction> {
    let mut code = vec![load(ARCH), skip_if(EQ, NATIVE, 1), finish(KILL_PROCESS), load(NUMBER)];
    if cfg!(target_arch = "x86_64") {
        // A debugger that skips a system call sets its number to -1, which is none of x32's.
        code.extend([skip_if(EQ, u32::MAX, 2), skip_unless(GE, X32, 1), finish(KILL_PROCESS)]);
    }
    for (number, _) in REFUSED {
        code.extend(when(*number, &[finish(error(libc::EPERM))]));
    }
    for (number, _) in UNKNOWN {
        code.extend(when(*number, &[finish(error(libc::ENOSYS))]));
    }
    for number in [libc::SYS_socket, libc::SYS_socketpair] {
        code.extend(when(number, &socket()));
    }
    // A terminal request is an unsigned int: the kernel looks at the low half only, and so does this.
    code.extend(when(
        libc::SYS_ioctl,
        &[
            load(argument(1)),
            skip_if(EQ, TIOCSTI, 1),
            skip_unless(EQ, TIOCLINUX, 1),
            finish(error(libc::EPERM)),
            finish(ALLOW),
        ],
    ));
    for (number, mode) in MODES {
        code.extend(when(number, &refuse_bits(mode, becoming.refused())));
    }
    for (number, flags, mode) in OPENINGS {
        let made = refuse_bits(mode, becoming.refused());
        code.extend(when(
            number,
            &[&[load(argument(flags)), skip_if(SET, MAKES, 1), finish(ALLOW)], &made[..]].concat(),
        ));
    }
    // In a user namespace of its own a process has every capability again: over new namespaces only, but also over the
    // parts of the kernel that trust capabilities.
    for number in [libc::SYS_clone, libc::SYS_unshare] {
        code.extend(when(number, &refuse_bits(0, CLONE_NEWUSER)));
    }
    code.push(finish(ALLOW));
    code
}

/// Refuses a call whose argument has one of these bits.
fn refuse_bits(index: u32, bits: u32) -> [Instruction; 4] {
    [load(argument(index)), skip_unless(SET, bits, 1), finish(error(libc::EPERM)), finish(ALLOW)]
}

/// Decides about socket(2) and socketpair(2) by family, and for netlink by protocol.
fn socket() -> Vec<Instruction> {
    let mut code = vec![load(argument(0))];
    let [unix, inet, inet6, netlink] = FAMILIES;
    code.extend([
        skip_unless(EQ, netlink, 4),
        load(argument(2)),
        skip_unless(EQ, libc::NETLINK_ROUTE as u32, 1),
        finish(ALLOW),
        finish(error(libc::EPROTONOSUPPORT)),
        skip_if(EQ, unix, 3),
        skip_if(EQ, inet, 2),
        skip_if(EQ, inet6, 1),
        finish(error(libc::EAFNOSUPPORT)),
        finish(ALLOW),
    ]);
    code
}

/// Where the low half of an argument lies: all that the kernel looks at where it takes an int.
const fn argument(index: u32) -> u32 {
    let low = if cfg!(target_endian = "little") { 0 } else { 4 };
    16 + 8 * index + low
}

const fn error(number: i32) -> u32 {
    ERRNO | number as u32
}

/// BPF_JMP | BPF_K with the comparison.
const EQ: u16 = 0x15;
const GE: u16 = 0x35;
const SET: u16 = 0x45;

/// `body` where the number of the system call is this one. Each body ends with an answer.
fn when(number: i64, body: &[Instruction]) -> Vec<Instruction> {
    let length = u8::try_from(body.len()).unwrap_or(u8::MAX);
    let number = u32::try_from(number).unwrap_or(u32::MAX);
    [&[skip_unless(EQ, number, length)], body].concat()
}

/// BPF_LD | BPF_W | BPF_ABS.
const fn load(offset: u32) -> Instruction {
    Instruction { code: 0x20, jump_true: 0, jump_false: 0, value: offset }
}

const fn skip_if(comparison: u16, value: u32, count: u8) -> Instruction {
    Instruction { code: comparison, jump_true: count, jump_false: 0, value }
}

const fn skip_unless(comparison: u16, value: u32, count: u8) -> Instruction {
    Instruction { code: comparison, jump_true: 0, jump_false: count, value }
}

/// BPF_RET | BPF_K.
const fn finish(answer: u32) -> Instruction {
    Instruction { code: 0x06, jump_true: 0, jump_false: 0, value: answer }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A call as the kernel shows it to a filter.
    #[derive(Clone, Copy)]
    struct Call {
        number: u32,
        arch: u32,
        arguments: [u64; 6],
    }

    fn call(number: i64, arguments: &[u64]) -> Call {
        let mut all = [0; 6];
        all[..arguments.len()].copy_from_slice(arguments);
        Call { number: u32::try_from(number).unwrap(), arch: NATIVE, arguments: all }
    }

    fn judge(call: Call) -> u32 {
        judge_by(Becoming::Nobody, call)
    }

    /// Runs the program as the kernel would.
    fn judge_by(becoming: Becoming, call: Call) -> u32 {
        let program = program(becoming);
        let word = |offset: u32| match offset {
            NUMBER => call.number,
            ARCH => call.arch,
            offset => {
                let (index, rest) = ((offset - 16) / 8, (offset - 16) % 8);
                let bytes = call.arguments[index as usize].to_ne_bytes();
                u32::from_ne_bytes(bytes[rest as usize..rest as usize + 4].try_into().unwrap())
            }
        };
        let (mut at, mut held) = (0, 0);
        loop {
            let now = program[at];
            at += 1;
            let taken = match now.code {
                0x20 => {
                    held = word(now.value);
                    continue;
                }
                0x06 => return now.value,
                EQ => held == now.value,
                GE => held >= now.value,
                SET => held & now.value != 0,
                other => panic!("an instruction that the program must not have: {other:#x}"),
            };
            at += usize::from(if taken { now.jump_true } else { now.jump_false });
        }
    }

    #[test]
    fn foreign_abis_are_killed() {
        let ordinary = call(libc::SYS_getpid, &[]);
        assert_eq!(judge(ordinary), ALLOW);
        // i386, ARM.
        for arch in [0x4000_0003, 0x4000_0028] {
            assert_eq!(judge(Call { arch, ..ordinary }), KILL_PROCESS);
        }
    }

    #[test]
    #[cfg(target_arch = "x86_64")]
    fn x32_is_killed_and_a_skipped_call_is_not() {
        for number in [X32, X32 | 41, X32 | 0x1ff, 0xffff_fffe] {
            let x32 = Call { number, ..call(0, &[]) };
            assert_eq!(judge(x32), KILL_PROCESS, "{number:#x}");
        }
        assert_eq!(judge(Call { number: u32::MAX, ..call(0, &[]) }), ALLOW);
    }

    #[test]
    fn families_are_those_of_the_internet_and_of_this_machine() {
        for number in [libc::SYS_socket, libc::SYS_socketpair] {
            for family in 0..50_u64 {
                let expected = match i32::try_from(family).unwrap() {
                    libc::AF_UNIX | libc::AF_INET | libc::AF_INET6 | libc::AF_NETLINK => ALLOW,
                    _ => error(libc::EAFNOSUPPORT),
                };
                for high in [0, 1 << 32, 0xdead << 32] {
                    assert_eq!(judge(call(number, &[family | high, 1, 0])), expected, "{family}");
                }
            }
        }
    }

    #[test]
    fn netlink_speaks_of_routes_only() {
        for protocol in 0..25 {
            let expected = if protocol == 0 { ALLOW } else { error(libc::EPROTONOSUPPORT) };
            assert_eq!(judge(call(libc::SYS_socket, &[16, 3, protocol])), expected, "{protocol}");
        }
    }

    #[test]
    fn terminal_input_is_not_made_whatever_the_upper_half_says() {
        for request in [TIOCSTI, TIOCLINUX] {
            for high in [0, 1, u64::from(u32::MAX)] {
                let forged = call(libc::SYS_ioctl, &[0, u64::from(request) | high << 32, 0]);
                assert_eq!(judge(forged), error(libc::EPERM));
            }
        }
        // TCGETS, TIOCSWINSZ, FIONBIO.
        for request in [0x5401, 0x5414, 0x5421] {
            assert_eq!(judge(call(libc::SYS_ioctl, &[0, request, 0])), ALLOW);
        }
    }

    #[test]
    fn no_user_namespace_is_made() {
        let user = u64::from(CLONE_NEWUSER);
        for number in [libc::SYS_clone, libc::SYS_unshare] {
            assert_eq!(judge(call(number, &[user])), error(libc::EPERM));
            assert_eq!(judge(call(number, &[user | 0x2000_0000])), error(libc::EPERM));
            assert_eq!(judge(call(number, &[17])), ALLOW);
        }
        assert_eq!(judge(call(libc::SYS_clone3, &[])), error(libc::ENOSYS));
    }

    /// Seen with a run that root started: a command left an executable that was root's and set-user-id in the workspace.
    #[test]
    fn no_file_makes_others_its_owner() {
        let with = |number: i64, at: u32, mode: u64, rest: &[(u32, u64)]| {
            let mut arguments = [0; 6];
            arguments[at as usize] = mode;
            rest.iter().for_each(|(at, value)| arguments[*at as usize] = *value);
            call(number, &arguments)
        };
        let refused = error(libc::EPERM);
        for (number, at) in MODES {
            for (mode, nobody, group) in [
                (0o755, ALLOW, ALLOW),
                (0o1777, ALLOW, ALLOW),
                (0o4755, refused, refused),
                (0o4000 | 0xdead << 32, refused, refused),
                (0o2775, refused, ALLOW),
            ] {
                let call = with(number, at, mode, &[]);
                let judged = [Becoming::Nobody, Becoming::Group].map(|becoming| judge_by(becoming, call));
                assert_eq!(judged, [nobody, group], "{number} {mode:o}");
            }
        }
        for (number, flags, mode) in OPENINGS {
            let open = |made: i32, bits: u64| judge(with(number, mode, bits, &[(flags, made as u64)]));
            for made in [libc::O_CREAT | libc::O_WRONLY, libc::O_TMPFILE | libc::O_RDWR] {
                assert_eq!([open(made, 0o644), open(made, 0o4755)], [ALLOW, refused], "{number} {made:o}");
            }
            // Nothing is made, and what stands in the place of a mode is none.
            for other in [libc::O_RDONLY, libc::O_DIRECTORY, libc::O_RDWR | libc::O_TRUNC] {
                assert_eq!(open(other, 0o7777), ALLOW, "{number} {other:o}");
            }
        }
        assert_eq!(judge(call(libc::SYS_openat2, &[])), error(libc::ENOSYS));
    }

    #[test]
    fn each_call_of_the_tables_has_its_answer_and_its_neighbours_pass() {
        let listed = |number: i64| REFUSED.iter().chain(UNKNOWN).any(|(other, _)| *other == number);
        for (number, why) in REFUSED {
            assert_eq!(judge(call(*number, &[])), error(libc::EPERM), "{why}");
        }
        for (number, why) in UNKNOWN {
            assert_eq!(judge(call(*number, &[])), error(libc::ENOSYS), "{why}");
        }
        for number in 0..470 {
            let special = [libc::SYS_socket, libc::SYS_socketpair].contains(&number);
            if !listed(number) && !special {
                assert_eq!(judge(call(number, &[])), ALLOW, "{number}");
            }
        }
    }
}
