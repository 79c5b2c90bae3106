//! What a command left running in the background goes on writing to the terminal: a copy of this process stays
//! behind to bring it there, until nobody has the pty any more.

use std::os::fd::AsFd;

use nix::fcntl::{OFlag, open};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, SigmaskHow, sigprocmask};
use nix::sys::stat::Mode;
use nix::unistd::{ForkResult, dup2_stderr, dup2_stdin, dup2_stdout, read, write};

use super::raw;

/// Returns to the caller at once.
pub(super) fn stay(master: impl AsFd, terminal: impl AsFd) {
    if let Ok(ForkResult::Child) = raw::fork() {
        detach();
        pass_on(master, terminal);
        raw::leave_at_once()
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
        wait(&master, PollFlags::POLLIN);
        let Ok(n @ 1..) = read(&master, &mut piece) else {
            return;
        };
        let mut rest = &piece[..n];
        while !rest.is_empty() {
            wait(&terminal, PollFlags::POLLOUT);
            match write(&terminal, rest) {
                Ok(n) => rest = &rest[n..],
                Err(nix::errno::Errno::EAGAIN | nix::errno::Errno::EINTR) => {}
                Err(_) => return,
            }
        }
    }
}

fn wait(fd: impl AsFd, event: PollFlags) {
    let _ = poll(&mut [PollFd::new(fd.as_fd(), event)], PollTimeout::NONE);
}
