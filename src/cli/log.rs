//! What goes wrong behind the screen is written to a file, since the screen is taken.
//!
//! `$XDG_STATE_HOME/gputop/gputop.log`, warnings and errors; the variable `GPUTOP_LOG` sets another level. A file over
//! a mebibyte is begun anew. Where it cannot be written, nothing is: a read-only home is no reason not to run.

use std::fs::{self, File, OpenOptions};
use std::sync::Mutex;

use etcetera::BaseStrategy;
use tracing_subscriber::EnvFilter;

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
    let folder = etcetera::choose_base_strategy()
        .ok()?
        .state_dir()?
        .join("gputop");
    fs::create_dir_all(&folder).ok()?;
    let path = folder.join("gputop.log");
    let is_large = fs::metadata(&path).is_ok_and(|file| file.len() > MAX_BYTES);
    let mut options = OpenOptions::new();
    options
        .create(true)
        .write(true)
        .append(!is_large)
        .truncate(is_large);
    options.open(path).ok()
}
