//! What goes wrong behind the screen is written to a file, since the screen is taken.
//!
//! `$XDG_STATE_HOME/gputop/gputop.log`, warnings and errors; the variable `GPUTOP_LOG` sets another level. A file over
//! a mebibyte is begun anew. Where it cannot be written, nothing is: a read-only home is no reason not to run.

use std::fs::File;
use std::sync::Mutex;

use tracing_subscriber::EnvFilter;

use crate::user_files::{self, Base, directory};

pub const LEVEL_VARIABLE: &str = "GPUTOP_LOG";
const MAX_BYTES: u64 = 1 << 20;

/// Starts writing; at most once a process.
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
