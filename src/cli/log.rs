//! Log file of gputop. Messages on stderr would corrupt the screen.
//!
//! Warnings and errors are written to `$XDG_STATE_HOME/gputop/gputop.log`. The variable `GPUTOP_LOG` sets a different
//! level. gputop truncates the file at startup if it is larger than 1 MiB, and runs without a log if the file is not
//! writable, such as in a read-only home directory.

use std::fs::File;
use std::sync::Mutex;

use tracing_subscriber::EnvFilter;

use crate::user_files::{self, Base, directory};

pub const LEVEL_VARIABLE: &str = "GPUTOP_LOG";
const MAX_BYTES: u64 = 1 << 20;

/// Starts logging to the log file. Call it at most once per process.
pub fn start() {
    let Some(file) = open() else { return };
    let level = EnvFilter::try_from_env(LEVEL_VARIABLE).unwrap_or_else(|_| EnvFilter::new("warn"));
    let _ = tracing_subscriber::fmt()
        .with_env_filter(level)
        .with_ansi(false)
        .with_writer(Mutex::new(file))
        .try_init();
}

fn open() -> Option<File> {
    let path = directory(Base::State, "gputop.log").ok()?;
    user_files::append(&path, MAX_BYTES).ok()
}
