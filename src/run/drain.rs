//! Forwards output of background processes that outlive the command. A fork of this process copies it from the pty to
//! the terminal until no process has the pty open.

use std::os::fd::AsFd;

use nix::errno::Errno;
use nix::fcntl::{OFlag, open};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, SigmaskHow, sigprocmask};
use nix::sys::stat::Mode;
use nix::unistd::{ForkResult, dup2_stderr, dup2_stdin, dup2_stdout, read, write};

use super::unsafe_calls;

/// Forks the forwarding process and returns immediately.
pub(super) fn fork_forwarder(master: impl AsFd, terminal: impl AsFd) {
    if let Ok(ForkResult::Child) = unsafe_calls::fork() {
        detach();
        forward(master, terminal);
        unsafe_calls::exit_immediately()
    }
}

/// Detaches from pipes and unblocks all signals. Readers wait for the end of a pipe, so this process must not hold
/// one open, and any signal must be able to end it.
fn detach() {
    if let Ok(null) = open(c"/dev/null", OFlag::O_RDWR, Mode::empty()) {
        let _ = dup2_stdin(&null);
        let _ = dup2_stdout(&null);
        let _ = dup2_stderr(&null);
    }
    let _ = sigprocmask(SigmaskHow::SIG_SETMASK, Some(&SigSet::empty()), None);
}

fn forward(master: impl AsFd, terminal: impl AsFd) {
    let mut chunk = [0; 4096];
    loop {
        let mut fds = [
            PollFd::new(master.as_fd(), PollFlags::POLLIN),
            // No events are requested: only hang-up is of interest.
            PollFd::new(terminal.as_fd(), PollFlags::empty()),
        ];
        let _ = poll(&mut fds, PollTimeout::NONE);
        let is_closed = fds[1].any().unwrap_or(false);
        let Ok(n @ 1..) = read(&master, &mut chunk) else {
            return;
        };
        if is_closed || !write_all(&terminal, &chunk[..n]) {
            return;
        }
    }
}

/// Returns true if all bytes were written.
fn write_all(terminal: impl AsFd, mut bytes: &[u8]) -> bool {
    while !bytes.is_empty() {
        let mut fds = [PollFd::new(terminal.as_fd(), PollFlags::POLLOUT)];
        let _ = poll(&mut fds, PollTimeout::NONE);
        match write(&terminal, bytes) {
            Ok(n) => bytes = &bytes[n..],
            Err(Errno::EAGAIN | Errno::EINTR) => {}
            Err(_) => return false,
        }
    }
    true
}
