//! An outside program asked for a short answer: bounded in time and size, and killed when it keeps neither.

use std::io::{self, Read};
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

/// An answer is there at once or not at all.
const LIMIT: Duration = Duration::from_millis(500);
/// More than any answer is.
const MAX_ANSWER: usize = 4 << 20;

/// A program that is killed and collected at the latest when this is dropped.
#[derive(Debug)]
pub struct Running(pub Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts it with nothing to read and nobody to complain to, and apart from the keys of our terminal.
///
/// # Errors
/// When there is no such program, or no process to be had.
pub fn start(program: &Path, args: &[&str]) -> io::Result<Running> {
    Command::new(program)
        .args(args)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .process_group(0)
        .spawn()
        .map(Running)
}

/// What it writes until it ends, well, and in time.
///
/// # Errors
/// When it cannot be started, fails, says too much, or takes too long (`TimedOut`).
pub fn answer(program: &Path, args: &[&str]) -> io::Result<Vec<u8>> {
    let deadline = Instant::now() + LIMIT;
    let mut running = start(program, args)?;
    let mut output = running.0.stdout.take().ok_or(io::ErrorKind::BrokenPipe)?;
    let mut answer = Vec::new();
    let mut piece = vec![0; 64 << 10];
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let left = PollTimeout::try_from(left.as_millis()).unwrap_or(PollTimeout::ZERO);
        let mut wait = [PollFd::new(output.as_fd(), PollFlags::POLLIN)];
        if left == PollTimeout::ZERO || poll(&mut wait, left)? == 0 {
            return Err(io::ErrorKind::TimedOut.into());
        }
        match output.read(&mut piece)? {
            0 => break,
            n => answer.extend_from_slice(&piece[..n]),
        }
        if answer.len() > MAX_ANSWER {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
    }
    drop(output);
    // It has closed its output and ends now, or is killed.
    while Instant::now() < deadline {
        if let Some(status) = running.0.try_wait()? {
            let failed = io::Error::other(format!("{} failed: {status}", program.display()));
            return if status.success() {
                Ok(answer)
            } else {
                Err(failed)
            };
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    Err(io::ErrorKind::TimedOut.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> io::Result<Vec<u8>> {
        answer(Path::new("/bin/sh"), &["-c", script])
    }

    #[test]
    fn an_answer_is_whole_in_time_or_an_error() {
        assert_eq!(shell("printf hello").expect("an answer"), b"hello");
        assert!(shell("printf hello; exit 3").is_err());
        assert!(shell("yes | head -c 20000000").is_err());
        assert!(answer(Path::new("/no/such/program"), &[]).is_err());
        let begun = Instant::now();
        for hanging in [
            "sleep 100",
            "exec >&-; sleep 100",
            "while :; do echo x; sleep 0.1; done",
        ] {
            let error = shell(hanging).expect_err("it hangs");
            assert_eq!(error.kind(), io::ErrorKind::TimedOut, "{hanging}");
        }
        assert!(begun.elapsed() < Duration::from_secs(5));
    }
}
