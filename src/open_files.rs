//! The limit on open files (`ulimit -n`): raised for gputop, divided among its long-lived files, and restored for its
//! child processes.
//!
//! Most systems have a soft limit of 1,024 open files, because some programs still use select(2), and a much higher
//! hard limit. Each watched process needs two files, its stat file and its pidfd, and a third one if its log is
//! followed.

use std::process::Command;

#[cfg(local)]
pub use self::local::{Limit, LongLivedFile, limit, raise, room_for};

/// Makes a child process inherit the limit on open files that gputop was started with.
pub fn restore_in(command: &mut Command) -> &mut Command {
    #[cfg(local)]
    local::restore_in(command);
    command
}

#[cfg(local)]
mod local {
    #![allow(unsafe_code)]

    use std::io;
    use std::os::fd::{AsFd, AsRawFd};
    use std::os::unix::process::CommandExt;
    use std::process::Command;
    use std::sync::OnceLock;

    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

    /// Highest value to which gputop raises the limit on open files: about ten files for each of a few thousand
    /// processes.
    const MAX_LIMIT: u64 = 65_536;

    /// Limit on open files before gputop raised it.
    static ORIGINAL: OnceLock<Rlimit> = OnceLock::new();

    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct Limit {
        pub original: u64,
        pub now: u64,
    }

    /// Purpose of a long-lived file. The files of each purpose may use only a share of the limit on open files. The
    /// last quarter is reserved for the terminal, the driver and short-lived files.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum LongLivedFile {
        /// `/proc/PID/stat`, kept open to avoid opening the file for each read.
        Stat,
        /// pidfd of a process. Without it, the process's exit is detected later.
        Pidfd,
        /// Log file. If it cannot be kept open, the log is not followed.
        Log,
    }

    impl LongLivedFile {
        fn share_of(self, limit: u64) -> u64 {
            match self {
                Self::Stat => limit / 4,
                Self::Pidfd => limit / 8 * 5,
                Self::Log => limit / 4 * 3,
            }
        }
    }

    /// Raises the soft limit on open files as far as the hard limit permits.
    pub fn raise() {
        let original = *ORIGINAL.get_or_init(|| getrlimit(Resource::Nofile));
        let wanted = original.maximum.map_or(MAX_LIMIT, |hard| hard.min(MAX_LIMIT));
        if original.current.is_none_or(|current| current >= wanted) {
            return;
        }
        let raised = Rlimit { current: Some(wanted), maximum: original.maximum };
        if let Err(error) = setrlimit(Resource::Nofile, raised) {
            tracing::warn!(%error, "cannot raise the limit on open files");
        }
    }

    pub fn limit() -> Limit {
        let soft = |limit: Rlimit| limit.current.unwrap_or(u64::MAX);
        let now = getrlimit(Resource::Nofile);
        Limit { original: soft(*ORIGINAL.get().unwrap_or(&now)), now: soft(now) }
    }

    /// Fails if a newly opened file exceeds the share of the limit that is reserved for its purpose. The kernel assigns
    /// the lowest free descriptor, so the descriptor number shows how many files are open.
    pub fn room_for(purpose: LongLivedFile, file: impl AsFd) -> io::Result<()> {
        let number = u64::from(file.as_fd().as_raw_fd().unsigned_abs());
        let limit = limit().now;
        if number < purpose.share_of(limit) {
            return Ok(());
        }
        Err(io::Error::other(format!(
            "the limit on open files ({limit}) is nearly reached. Raise it with `ulimit -n`"
        )))
    }

    pub(super) fn restore_in(command: &mut Command) {
        let Some(&original) = ORIGINAL.get() else { return };
        // SAFETY: between fork and exec, the closure makes a single system call. It does not allocate or lock.
        unsafe {
            command.pre_exec(move || Ok(setrlimit(Resource::Nofile, original)?));
        }
    }
}
