//! The few calls that the compiler cannot vouch for: fork, what happens between fork and exec, the window's size.
//!
//! Unsafe lives here and only here in this folder.
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

/// # Errors
/// When there is no room for another process.
pub(super) fn fork() -> nix::Result<ForkResult> {
    // SAFETY: the keeper is forked while this process has one thread. What stays behind at the end is forked when there
    // may be a second one (the tape's), and does nothing but read, write and leave: no allocation, no lock.
    unsafe { nix::unistd::fork() }
}

pub(super) fn window_size(terminal: impl AsFd) -> nix::Result<Winsize> {
    let mut size = Winsize {
        ws_row: 0,
        ws_col: 0,
        ws_xpixel: 0,
        ws_ypixel: 0,
    };
    // SAFETY: the kernel writes one `Winsize` to where the pointer points, which is one.
    unsafe { read_size(terminal.as_fd().as_raw_fd(), &raw mut size)? };
    Ok(size)
}

pub(super) fn set_window_size(terminal: impl AsFd, size: &Winsize) -> nix::Result<()> {
    // SAFETY: the kernel reads one `Winsize` from where the pointer points, which is one.
    unsafe { write_size(terminal.as_fd().as_raw_fd(), &raw const *size)? };
    Ok(())
}

/// As if `byte` had been typed.
pub(super) fn put_back(terminal: impl AsFd, byte: u8) -> nix::Result<()> {
    // SAFETY: the kernel reads one byte from where the pointer points, which is one.
    unsafe { put_byte(terminal.as_fd().as_raw_fd(), &raw const byte)? };
    Ok(())
}

/// Gives this thread only what the others leave of the processors (to the kernel a thread is a process here).
pub(super) fn come_last() {
    const LAST: libc::c_int = 19;
    // SAFETY: it takes and returns numbers.
    unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, LAST) };
}

/// Ends this process without anything that its parent has arranged for its own end.
pub(super) fn leave_at_once() -> ! {
    // SAFETY: it does not return, and touches nothing of this process.
    unsafe { libc::_exit(0) }
}

/// Lets ended children be asked for their status, whatever we were started with.
pub(super) fn keep_ended_children() -> nix::Result<()> {
    let action = SigAction::new(SigHandler::SigDfl, SaFlags::empty(), SigSet::empty());
    // SAFETY: no handler of ours is installed, so nothing of ours runs in a signal.
    unsafe { nix::sys::signal::sigaction(Signal::SIGCHLD, &action) }?;
    Ok(())
}

/// Before the command begins: its own group in the foreground of this terminal, where one is given; and the signals
/// blocked that were blocked when we were started.
pub(super) fn before_exec(command: &mut Command, mask: SigSet, terminal: Option<RawFd>) {
    let begin = move || -> io::Result<()> {
        if let Some(terminal) = terminal {
            // A group that is not in the foreground is stopped when it takes the terminal, unless it blocks this.
            let mut stop = SigSet::empty();
            stop.add(Signal::SIGTTOU);
            nix::sys::signal::sigprocmask(SigmaskHow::SIG_BLOCK, Some(&stop), None)?;
            nix::unistd::setpgid(Pid::from_raw(0), Pid::from_raw(0))?;
            // SAFETY: the keeper has it open until after this fork, and it is closed on exec only.
            let terminal = unsafe { std::os::fd::BorrowedFd::borrow_raw(terminal) };
            nix::unistd::tcsetpgrp(terminal, nix::unistd::getpid())?;
        }
        nix::sys::signal::sigprocmask(SigmaskHow::SIG_SETMASK, Some(&mask), None)?;
        Ok(())
    };
    // SAFETY: only system calls that may be made between fork and exec; nothing is allocated.
    unsafe { command.pre_exec(begin) };
}
