//! The tmux that this runs in, asked within a time: a server that hangs must not hold up who asks.

use std::io::{self, Read, Write};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::model::text::visible;

const PATIENCE: Duration = Duration::from_secs(2);
/// Of an answer; a line of options is far shorter.
const MAX_BYTES: u64 = 4096;

/// Runs `tmux ARGS` with `input` as its standard input, and waits, so not on the UI's task; returns what it printed.
/// `input` must fit into a pipe.
///
/// # Errors
/// A clause: what tmux said, or why there was nobody to say it.
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
    let written = child
        .stdin
        .take()
        .map(|mut pipe| pipe.write_all(input.as_bytes()));
    let Some(status) = wait(&mut child).map_err(failed)? else {
        return Err(format!(
            "`{command}` has not answered for {} s",
            PATIENCE.as_secs()
        ));
    };
    if status.success() && written.is_some_and(|written| written.is_ok()) {
        return Ok(read(child.stdout.take()));
    }
    let said = read(child.stderr.take());
    let said = visible(said.trim().as_bytes(), 100);
    Err(match said.is_empty() {
        true => format!("`{command}`: {status}"),
        false => format!("`{command}`: {said}"),
    })
}

/// What is left of an ended program's output.
fn read(pipe: Option<impl Read>) -> String {
    let mut bytes = Vec::new();
    // What could not be read is as good as not said.
    let _ = pipe.map(|pipe| pipe.take(MAX_BYTES).read_to_end(&mut bytes));
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Its end; `None` for one that was killed because it took too long.
fn wait(child: &mut Child) -> io::Result<Option<ExitStatus>> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        if Instant::now() >= deadline {
            child.kill()?;
            child.wait()?;
            return Ok(None);
        }
        thread::sleep(Duration::from_millis(5));
    }
}
