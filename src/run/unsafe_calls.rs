//! Unsafe system calls: preparations between fork and exec, window size, signal actions.
//!
//! No other file in `src/run` contains unsafe code.
#![allow(unsafe_code)]

use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::os::unix::process::CommandExt;
use std::process::Command;

use nix::libc;
use nix::pty::Winsize;
use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::{
    SaFlags, SigAction, SigHandler, SigSet, SigmaskHow, Signal, raise, sigaction, sigprocmask,
};
use nix::unistd::{getpid, getppid, setsid};

nix::ioctl_read_bad!(read_size, libc::TIOCGWINSZ, Winsize);
nix::ioctl_write_ptr_bad!(write_size, libc::TIOCSWINSZ, Winsize);
nix::ioctl_write_int_bad!(set_controlling_terminal, libc::TIOCSCTTY);

/// Makes the command the leader of a new session that its standard input controls.
pub(super) fn start_session(command: &mut Command) {
    let prepare = || {
        setsid()?;
        // SAFETY: the call takes integers, and descriptor 0 is open in the child.
        unsafe { set_controlling_terminal(libc::STDIN_FILENO, 0) }?;
        Ok(())
    };
    // SAFETY: the closure makes only async-signal-safe system calls and allocates nothing.
    unsafe { command.pre_exec(prepare) };
}

pub(super) fn copy_window_size(terminal: impl AsFd, pty: impl AsFd) {
    let mut size = Winsize { ws_row: 0, ws_col: 0, ws_xpixel: 0, ws_ypixel: 0 };
    // SAFETY: both pointers refer to `size`, a valid `Winsize`, which the kernel writes and then reads.
    unsafe {
        if read_size(terminal.as_fd().as_raw_fd(), &raw mut size).is_ok() {
            let _ = write_size(pty.as_fd().as_raw_fd(), &raw const size);
        }
    }
}

/// Restores the default action of SIGCHLD, so that exited children can be waited for even if gputop was started with
/// the signal ignored. Returns true if it was ignored.
pub(super) fn restore_sigchld_default() -> nix::Result<bool> {
    // SAFETY: no signal handler is installed, so no gputop code runs in a signal handler.
    let before = unsafe { sigaction(Signal::SIGCHLD, &action(SigHandler::SigDfl)) }?;
    Ok(matches!(before.handler(), SigHandler::SigIgn))
}

fn action(handler: SigHandler) -> SigAction {
    SigAction::new(handler, SaFlags::empty(), SigSet::empty())
}

/// State of the process that gputop was started with, and that the command must inherit.
pub(super) struct Inheritance {
    /// Blocked signals. `None` if gputop has not changed them.
    pub(super) mask: Option<SigSet>,
    /// Ignored signals that gputop or Rust's runtime handle differently.
    pub(super) ignored: Vec<Signal>,
    /// Closed standard streams, in whose place Rust's runtime has opened `/dev/null`.
    pub(super) closed_streams: Vec<RawFd>,
}

/// Prepares the child before exec: restores the state that gputop was started with. If `hangs_up` is set, the child
/// receives SIGHUP if gputop is killed, as it would if its terminal were closed.
pub(super) fn before_exec(command: &mut Command, inheritance: Inheritance, hangs_up: bool) {
    let gputop = getpid();
    let prepare = move || {
        for stream in &inheritance.closed_streams {
            // SAFETY: the standard library has already placed the streams, and no value in the child owns this one.
            unsafe { libc::close(*stream) };
        }
        for signal in &inheritance.ignored {
            // SAFETY: no signal handler is installed.
            unsafe { sigaction(*signal, &action(SigHandler::SigIgn)) }?;
        }
        if hangs_up {
            set_pdeathsig(Signal::SIGHUP)?;
            // gputop may have been killed before.
            if getppid() != gputop {
                raise(Signal::SIGHUP)?;
            }
        }
        if let Some(mask) = &inheritance.mask {
            sigprocmask(SigmaskHow::SIG_SETMASK, Some(mask), None)?;
        }
        Ok(())
    };
    // SAFETY: the closure makes only async-signal-safe system calls and allocates nothing.
    unsafe { command.pre_exec(prepare) };
}
