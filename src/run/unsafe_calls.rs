//! Unsafe system calls: preparations between fork and exec, window size, signal actions.
//!
//! No other file in `src/run` contains unsafe code.
#![allow(unsafe_code)]

use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::process::CommandExt;
use std::process::Command;

use nix::libc;
use nix::pty::Winsize;
use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, SigmaskHow, Signal};

nix::ioctl_read_bad!(read_size, libc::TIOCGWINSZ, Winsize);
nix::ioctl_write_ptr_bad!(write_size, libc::TIOCSWINSZ, Winsize);

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
/// the signal ignored.
pub(super) fn restore_sigchld_default() -> nix::Result<()> {
    let action = SigAction::new(SigHandler::SigDfl, SaFlags::empty(), SigSet::empty());
    // SAFETY: no signal handler is installed, so no gputop code runs in a signal handler.
    unsafe { nix::sys::signal::sigaction(Signal::SIGCHLD, &action) }?;
    Ok(())
}

/// Prepares the child before exec: restores the signal mask that gputop was started with. If `hangs_up` is set, the
/// child receives SIGHUP if gputop is killed, as it would if its terminal were closed.
pub(super) fn before_exec(command: &mut Command, mask: SigSet, hangs_up: bool) {
    let prepare = move || {
        if hangs_up {
            set_pdeathsig(Signal::SIGHUP)?;
        }
        nix::sys::signal::sigprocmask(SigmaskHow::SIG_SETMASK, Some(&mask), None)?;
        Ok(())
    };
    // SAFETY: the closure makes only async-signal-safe system calls and allocates nothing.
    unsafe { command.pre_exec(prepare) };
}
