//! Unsafe system calls: fork, work between fork and exec, window size.
//!
//! This is the only file of this folder with unsafe code.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::os::unix::process::CommandExt;
use std::process::Command;

use nix::libc;
use nix::pty::Winsize;
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, SigmaskHow, Signal};
use nix::unistd::{ForkResult, Pid};

nix::ioctl_read_bad!(read_size, libc::TIOCGWINSZ, Winsize);
nix::ioctl_write_ptr_bad!(put_byte, libc::TIOCSTI, u8);
nix::ioctl_write_ptr_bad!(write_size, libc::TIOCSWINSZ, Winsize);

pub(super) fn fork() -> nix::Result<ForkResult> {
    // SAFETY: the session leader is forked while this process has one thread. The forwarder is forked when a second
    // thread may exist (the reader of the captured output); it only reads, writes and exits, without allocating or
    // locking.
    unsafe { nix::unistd::fork() }
}

pub(super) fn window_size(terminal: impl AsFd) -> nix::Result<Winsize> {
    let mut size = Winsize {
        ws_row: 0,
        ws_col: 0,
        ws_xpixel: 0,
        ws_ypixel: 0,
    };
    // SAFETY: the kernel writes one `Winsize` through the pointer, which points to one.
    unsafe { read_size(terminal.as_fd().as_raw_fd(), &raw mut size)? };
    Ok(size)
}

pub(super) fn set_window_size(terminal: impl AsFd, size: &Winsize) -> nix::Result<()> {
    // SAFETY: the kernel reads one `Winsize` through the pointer, which points to one.
    unsafe { write_size(terminal.as_fd().as_raw_fd(), &raw const *size)? };
    Ok(())
}

/// Simulates typing `byte`.
pub(super) fn put_back(terminal: impl AsFd, byte: u8) -> nix::Result<()> {
    // SAFETY: the kernel reads one byte through the pointer, which points to one.
    unsafe { put_byte(terminal.as_fd().as_raw_fd(), &raw const byte)? };
    Ok(())
}

/// Gives this thread the lowest priority. For the kernel, a thread is a process in this call.
pub(super) fn lower_priority() {
    const LAST: libc::c_int = 19;
    // SAFETY: the call takes and returns numbers.
    unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, LAST) };
}

/// Exits without running exit handlers or destructors that belong to the parent.
pub(super) fn exit_immediately() -> ! {
    // SAFETY: the call does not return and touches no memory of this process.
    unsafe { libc::_exit(0) }
}

/// Restores the default action of SIGCHLD, so that exited children can be waited for even if gputop was started with
/// the signal ignored.
pub(super) fn restore_sigchld_default() -> nix::Result<()> {
    let action = SigAction::new(SigHandler::SigDfl, SaFlags::empty(), SigSet::empty());
    // SAFETY: no signal handler is installed, so no code of gputop runs in a signal.
    unsafe { nix::sys::signal::sigaction(Signal::SIGCHLD, &action) }?;
    Ok(())
}

/// Prepares the child before exec: puts it into its own foreground group of `terminal`, if given, and restores the
/// signal mask that gputop was started with.
pub(super) fn before_exec(command: &mut Command, mask: SigSet, terminal: Option<RawFd>) {
    let prepare = move || -> io::Result<()> {
        if let Some(terminal) = terminal {
            // A background group that takes the terminal is stopped unless it blocks this signal.
            let mut stop = SigSet::empty();
            stop.add(Signal::SIGTTOU);
            nix::sys::signal::sigprocmask(SigmaskHow::SIG_BLOCK, Some(&stop), None)?;
            nix::unistd::setpgid(Pid::from_raw(0), Pid::from_raw(0))?;
            // SAFETY: the session leader keeps the descriptor open until after this fork, and only exec closes it.
            let terminal = unsafe { std::os::fd::BorrowedFd::borrow_raw(terminal) };
            nix::unistd::tcsetpgrp(terminal, nix::unistd::getpid())?;
        }
        nix::sys::signal::sigprocmask(SigmaskHow::SIG_SETMASK, Some(&mask), None)?;
        Ok(())
    };
    // SAFETY: the closure makes only async-signal-safe system calls and allocates nothing.
    unsafe { command.pre_exec(prepare) };
}
