//! Log file of gputop. Messages on stderr would corrupt the screen.
//!
//! Warnings and errors are written to `$XDG_STATE_HOME/gputop/gputop.log`. The variable `GPUTOP_LOG` sets a different
//! level. gputop truncates the file at startup if it is larger than 1 MiB, and runs without a log if the file is not
//! writable, such as in a read-only home directory.

use std::env;
use std::fs::File;
use std::sync::Mutex;

use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::fmt;
use tracing_subscriber::prelude::*;

use crate::user_files::{self, Base, directory};

pub const LEVEL_VARIABLE: &str = "GPUTOP_LOG";
const MAX_BYTES: u64 = 1 << 20;

/// Starts logging to the log file. Call it at most once per process.
pub fn start() {
    let Some(file) = open() else { return };
    let levels = env::var(LEVEL_VARIABLE).ok().and_then(|levels| levels.parse::<Targets>().ok());
    let levels = levels.unwrap_or_else(|| Targets::new().with_default(LevelFilter::WARN));
    let lines = fmt::layer().with_ansi(false).with_writer(Mutex::new(file));
    let _ = tracing_subscriber::registry().with(lines.with_filter(levels)).try_init();
}

fn open() -> Option<File> {
    let path = directory(Base::State, "gputop.log").ok()?;
    user_files::append(&path, MAX_BYTES).ok()
}
