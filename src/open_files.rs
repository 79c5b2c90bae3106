//! The limit on open files (`ulimit -n`): raised for gputop, divided among what it keeps open, restored for its children.
//!
//! Most systems grant 1,024 to a program that does not ask, for those that still use select(2), and far more to one that
//! does. A watched process costs two files, its stat and its pidfd, and a third where its log is followed.

use std::process::Command;

#[cfg(local)]
pub use self::local::{KeptFile, Limit, limit, raise, room_for};

/// Makes the child inherit the limit that gputop was started with.
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

    /// Some ten for each of a few thousand processes.
    const MAX_WANTED: u64 = 65_536;

    /// The limit before it was raised.
    static ORIGINAL: OnceLock<Rlimit> = OnceLock::new();

    /// The soft limit.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct Limit {
        pub original: u64,
        pub now: u64,
    }

    /// What a file is kept open for. Each may use the limit up to a share of it; the last quarter is left to the
    /// terminal, the driver and files that are open for a moment.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum KeptFile {
        /// Saves opening it for each reading.
        Stat,
        /// Without it the exit of a process is noticed later.
        Pidfd,
        /// Without it a log is not followed.
        Log,
    }

    impl KeptFile {
        fn share_of(self, limit: u64) -> u64 {
            match self {
                Self::Stat => limit / 4,
                Self::Pidfd => limit / 8 * 5,
                Self::Log => limit / 4 * 3,
            }
        }
    }

    /// Raises the soft limit as far as the hard limit permits.
    pub fn raise() {
        let original = *ORIGINAL.get_or_init(|| getrlimit(Resource::Nofile));
        let wanted = original
            .maximum
            .map_or(MAX_WANTED, |hard| hard.min(MAX_WANTED));
        if original.current.is_none_or(|current| current >= wanted) {
            return;
        }
        let raised = Rlimit {
            current: Some(wanted),
            maximum: original.maximum,
        };
        if let Err(error) = setrlimit(Resource::Nofile, raised) {
            tracing::warn!(%error, "the limit on open files cannot be raised");
        }
    }

    /// Returns the soft limit now and before it was raised.
    pub fn limit() -> Limit {
        let soft = |limit: Rlimit| limit.current.unwrap_or(u64::MAX);
        let now = getrlimit(Resource::Nofile);
        Limit {
            original: soft(*ORIGINAL.get().unwrap_or(&now)),
            now: soft(now),
        }
    }

    /// Whether a file that was just opened may be kept open. The kernel gives the lowest free number, so the number says
    /// how many files are open.
    ///
    /// # Errors
    /// When it may not.
    pub fn room_for(kept: KeptFile, file: impl AsFd) -> io::Result<()> {
        let number = u64::from(file.as_fd().as_raw_fd().unsigned_abs());
        let limit = limit().now;
        if number < kept.share_of(limit) {
            return Ok(());
        }
        Err(io::Error::other(format!(
            "the limit on open files ({limit}) leaves no room for it. Raise it with `ulimit -n`"
        )))
    }

    pub(super) fn restore_in(command: &mut Command) {
        let Some(&original) = ORIGINAL.get() else {
            return;
        };
        // SAFETY: between fork and exec the closure makes one system call; it neither allocates nor locks.
        unsafe {
            command.pre_exec(move || Ok(setrlimit(Resource::Nofile, original)?));
        }
    }
}
