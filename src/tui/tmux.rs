//! Runs commands in the surrounding tmux with a timeout, so that a hung tmux server does not block the caller.

use std::io::{self, Read, Write};
use std::process::{Command, Stdio};
use std::time::Duration;

use gputop_model::text::visible;

use crate::child_exit::exit_within;

const TMUX_TIMEOUT: Duration = Duration::from_secs(2);
/// Maximum length of output to read. The line that shows an option is much shorter.
const MAX_OUTPUT_BYTES: u64 = 4096;

/// Runs `tmux ARGS` with `input` on stdin and returns its output. Must not run on the UI task, because it blocks.
/// `input` must fit into a pipe's buffer.
pub fn run(args: &[&str], input: &str) -> Result<String, String> {
    let command = format!("tmux {}", args.first().unwrap_or(&""));
    let failed = |error: io::Error| format!("`{command}`: {error}");
    let mut child = Command::new("tmux")
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(failed)?;
    let written = child.stdin.take().map(|mut pipe| pipe.write_all(input.as_bytes()));
    let Some(status) = exit_within(&mut child, TMUX_TIMEOUT).map_err(failed)? else {
        return Err(format!("`{command}`: no response after {} s", TMUX_TIMEOUT.as_secs()));
    };
    if status.success() && written.is_some_and(|written| written.is_ok()) {
        return Ok(read(child.stdout.take()));
    }
    let message = read(child.stderr.take());
    let message = visible(message.trim().as_bytes(), 100);
    Err(if message.is_empty() {
        format!("`{command}`: {status}")
    } else {
        format!("`{command}`: {message}")
    })
}

/// Reads the remaining output of an exited command.
fn read(pipe: Option<impl Read>) -> String {
    let mut bytes = Vec::new();
    // Unreadable output is treated as empty.
    let _ = pipe.map(|pipe| pipe.take(MAX_OUTPUT_BYTES).read_to_end(&mut bytes));
    String::from_utf8_lossy(&bytes).into_owned()
}
