//! What a command left running in the background goes on writing to the terminal: a copy of this process stays
//! behind to bring it there, until nobody has the pty any more.

use std::os::fd::AsFd;

use nix::errno::Errno;
use nix::fcntl::{OFlag, open};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, SigmaskHow, sigprocmask};
use nix::sys::stat::Mode;
use nix::unistd::{ForkResult, dup2_stderr, dup2_stdin, dup2_stdout, read, write};

use super::unsafe_calls;

/// Returns to the caller at once.
pub(super) fn stay(master: impl AsFd, terminal: impl AsFd) {
    if let Ok(ForkResult::Child) = unsafe_calls::fork() {
        detach();
        pass_on(master, terminal);
        unsafe_calls::leave_at_once()
    }
}

/// Nobody waits for this process: pipes that are read to their end must not be held open, and every signal ends it.
fn detach() {
    if let Ok(null) = open(c"/dev/null", OFlag::O_RDWR, Mode::empty()) {
        let _ = dup2_stdin(&null);
        let _ = dup2_stdout(&null);
        let _ = dup2_stderr(&null);
    }
    let _ = sigprocmask(SigmaskHow::SIG_SETMASK, Some(&SigSet::empty()), None);
}

fn pass_on(master: impl AsFd, terminal: impl AsFd) {
    let mut piece = [0; 4096];
    loop {
        let mut fds = [
            PollFd::new(master.as_fd(), PollFlags::POLLIN),
            // Nothing is asked of it but whether it is still there.
            PollFd::new(terminal.as_fd(), PollFlags::empty()),
        ];
        let _ = poll(&mut fds, PollTimeout::NONE);
        let is_gone = fds[1].any().unwrap_or(false);
        let Ok(n @ 1..) = read(&master, &mut piece) else {
            return;
        };
        if is_gone || !write_all(&terminal, &piece[..n]) {
            return;
        }
    }
}

/// Whether all of it was taken.
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
