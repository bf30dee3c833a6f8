//! The system calls that no crate of ours wraps safely: the one place where `unsafe` is allowed.
//!
//! Each function is safe to call as it stands: what a call needs is checked here, not asked of the caller.
#![expect(unsafe_code, reason = "no safe wrapper exists; each block says why it is sound (docs/adr/0008)")]

use std::fs;
use std::io;
use std::os::fd::{AsRawFd as _, BorrowedFd};

use nix::libc;
use nix::sys::signal::{SigHandler, Signal, signal};
use nix::unistd::ForkResult;
use rustix::process::Pid;
use rustix::thread::UnshareFlags;

/// Which side of a [`fork`] this is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fork {
    /// The process that called, and the pid of its child.
    Parent(Pid),
    /// The new process.
    Child,
}

/// One instruction of a classic BPF program (linux/filter.h, `struct sock_filter`).
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Instruction {
    pub(crate) code: u16,
    pub(crate) jump_true: u8,
    pub(crate) jump_false: u8,
    pub(crate) value: u32,
}

/// What changes on a mount (mount_setattr(2), `struct mount_attr`).
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct MountAttr {
    set: u64,
    clear: u64,
    propagation: u64,
    userns_fd: u64,
}

/// Whether a change of a mount holds for the mounts below it too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reach {
    /// This mount alone.
    Alone,
    /// Every mount of the tree.
    Tree,
}

/// Makes a second process that goes on from here.
///
/// # Errors
/// `WouldBlock` where this process has more than one thread; else what fork(2) says.
pub(crate) fn fork() -> io::Result<Fork> {
    // Each thread is an entry (proc(5)).
    if fs::read_dir("/proc/self/task")?.count() != 1 {
        return Err(io::Error::new(io::ErrorKind::WouldBlock, "a process with threads cannot be copied"));
    }
    // SAFETY: a child of fork may call only async-signal-safe functions where the parent had other threads, whose locks
    // it would find held for ever (fork(2)). There is exactly one thread: this one, which has just counted itself, and
    // only it could have started another since.
    match unsafe { nix::unistd::fork() }? {
        ForkResult::Parent { child } => match Pid::from_raw(child.as_raw()) {
            Some(child) => Ok(Fork::Parent(child)),
            None => Err(io::ErrorKind::InvalidData.into()),
        },
        ForkResult::Child => Ok(Fork::Child),
    }
}

/// Moves this process into namespaces of its own.
///
/// # Errors
/// What unshare(2) says.
#[expect(
    deprecated,
    reason = "rustix marks it for CLONE_FILES, which is refused here; the other form is `unsafe`"
)]
pub(crate) fn unshare(what: UnshareFlags) -> io::Result<()> {
    if what.contains(UnshareFlags::FILES) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    Ok(rustix::thread::unshare(what)?)
}

/// Lets no descriptor from `first` on survive the next execve(2).
///
/// # Errors
/// What close_range(2) says: Linux before 5.11 does not know the flag.
pub(crate) fn close_on_exec_from(first: u32) -> io::Result<()> {
    const CLOSE_RANGE_CLOEXEC: libc::c_uint = 1 << 2;
    // SAFETY: with this flag nothing is closed, so that no owner of a descriptor in this process loses it; the arguments
    // are plain numbers.
    let done = unsafe { libc::syscall(libc::SYS_close_range, first, libc::c_uint::MAX, CLOSE_RANGE_CLOEXEC) };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Closes every descriptor from `first` on, whoever left it open.
///
/// To be called where nothing of this process uses one of them again, owners that still hold one included: by a process
/// that from now on waits on its standard streams and then exits without returning (`exit` runs no destructors).
///
/// # Errors
/// What close_range(2) says: Linux before 5.9 does not know it.
pub(crate) fn close_from(first: u32) -> io::Result<()> {
    // SAFETY: no memory is touched; the arguments are plain numbers. A descriptor that is closed under its owner is an
    // error of the owner's next call, and by the contract above there is none.
    let done = unsafe { libc::syscall(libc::SYS_close_range, first, libc::c_uint::MAX, 0) };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Makes the mount at the root of `tree` read-only, with those below it where `reach` says so.
///
/// # Errors
/// What mount_setattr(2) says.
pub(crate) fn make_read_only(tree: BorrowedFd<'_>, reach: Reach) -> io::Result<()> {
    const MOUNT_ATTR_RDONLY: u64 = 1;
    set_mount(tree, reach, MountAttr { set: MOUNT_ATTR_RDONLY, ..MountAttr::default() })
}

/// Lets the ids of the mount at the root of `tree` be seen through the maps of the user namespace `ids`.
///
/// # Errors
/// What mount_setattr(2) says: the file system may not know how, and the mount must not be attached yet.
pub(crate) fn map_ids(tree: BorrowedFd<'_>, reach: Reach, ids: BorrowedFd<'_>) -> io::Result<()> {
    const MOUNT_ATTR_IDMAP: u64 = 0x0010_0000;
    let userns_fd = u64::try_from(ids.as_raw_fd()).unwrap_or(u64::MAX);
    set_mount(tree, reach, MountAttr { set: MOUNT_ATTR_IDMAP, userns_fd, ..MountAttr::default() })
}

fn set_mount(tree: BorrowedFd<'_>, reach: Reach, attr: MountAttr) -> io::Result<()> {
    const AT_RECURSIVE: libc::c_int = 0x8000;
    let flags = libc::AT_EMPTY_PATH | if reach == Reach::Tree { AT_RECURSIVE } else { 0 };
    // SAFETY: the path is a string that ends in NUL and lives for the program; `attr` is a live value of the layout of
    // `struct mount_attr`, whose size is given; the kernel reads both and writes neither.
    let done = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            tree.as_raw_fd(),
            c"".as_ptr(),
            flags,
            &raw const attr,
            size_of::<MountAttr>(),
        )
    };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Puts a seccomp filter on this thread and whatever it starts from now on. It cannot be taken off.
///
/// # Errors
/// What seccomp(2) says: `no_new_privs` must be set, and 4096 instructions are the most.
pub(crate) fn install_filter(program: &[Instruction]) -> io::Result<()> {
    #[repr(C)]
    struct Program {
        length: libc::c_ushort,
        instructions: *const Instruction,
    }
    const SECCOMP_SET_MODE_FILTER: libc::c_uint = 1;
    let length = libc::c_ushort::try_from(program.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
    let program = Program { length, instructions: program.as_ptr() };
    let flags: libc::c_uint = 0;
    // SAFETY: `program` has the layout of `struct sock_fprog` and points to `length` live instructions of the layout of
    // `struct sock_filter`; the kernel copies them before it returns and writes nothing.
    let done =
        unsafe { libc::syscall(libc::SYS_seccomp, SECCOMP_SET_MODE_FILTER, flags, &raw const program) };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// What refuses rings (io_uring) to this process, if anything does. None is made.
pub(crate) fn refusal_of_rings() -> Option<io::Error> {
    let entries: libc::c_uint = 0;
    // SAFETY: the kernel copies its parameters from the second argument before it does anything else, and a null pointer
    // is none of this process: it then says EFAULT and has written nothing. Nothing of ours is pointed to.
    let done = unsafe { libc::syscall(libc::SYS_io_uring_setup, entries, std::ptr::null::<libc::c_void>()) };
    let error = io::Error::last_os_error();
    (done != 0 && !matches!(error.raw_os_error(), Some(libc::EFAULT | libc::EINVAL))).then_some(error)
}

/// Gives a signal its default action back: a parent may have let this process ignore it (execve(2) keeps that).
///
/// # Errors
/// What sigaction(2) says.
pub(crate) fn restore_default(which: Signal) -> io::Result<()> {
    // SAFETY: a handler that runs code could interrupt any of ours; the default action runs none.
    unsafe { signal(which, SigHandler::SigDfl) }?;
    Ok(())
}

/// Gives the memory that is free in this process back to the system. Reading a large config takes four times what it
/// comes to, and glibc keeps the holes between what stays: 125 MB instead of 63 MB with a million names (measured).
///
/// It takes milliseconds there. Other libraries have no such call, and nothing is done.
pub(crate) fn give_back_free_memory() {
    #[cfg(target_env = "gnu")]
    // SAFETY: it takes the allocator's own locks, as malloc(3) does, and touches free memory alone (malloc_trim(3)).
    unsafe {
        libc::malloc_trim(0)
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_with_threads_is_not_copied() {
        let (hold, held) = std::sync::mpsc::channel::<()>();
        let other = std::thread::spawn(move || held.recv());
        let refused = fork().expect_err("the test harness has threads");
        assert_eq!(refused.kind(), io::ErrorKind::WouldBlock);
        drop(hold);
        let _ = other.join();
    }
}
