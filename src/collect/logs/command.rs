//! Runs an external program and returns its output. The program is killed if it exceeds a time or size limit.

use std::io::{self, Read};
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::child_exit::exit_within;

const ANSWER_TIMEOUT: Duration = Duration::from_millis(500);
const MAX_ANSWER: usize = 4 << 20;

/// Child process that is killed and reaped on drop.
#[derive(Debug)]
pub struct Running(pub Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts a program without standard input and standard error. The program gets its own process group, so that signals
/// from gputop's terminal do not reach it.
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

/// Runs a program and returns its standard output, subject to the time and size limits.
pub fn answer(program: &Path, args: &[&str]) -> io::Result<Vec<u8>> {
    let deadline = Instant::now() + ANSWER_TIMEOUT;
    let mut running = start(program, args)?;
    let mut output = running.0.stdout.take().ok_or(io::ErrorKind::BrokenPipe)?;
    let mut answer = Vec::new();
    let mut chunk = vec![0; 64 << 10];
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let left = PollTimeout::try_from(left.as_millis()).unwrap_or(PollTimeout::ZERO);
        let mut wait = [PollFd::new(output.as_fd(), PollFlags::POLLIN)];
        if left == PollTimeout::ZERO || poll(&mut wait, left)? == 0 {
            return Err(io::ErrorKind::TimedOut.into());
        }
        match output.read(&mut chunk)? {
            0 => break,
            n => answer.extend_from_slice(&chunk[..n]),
        }
        if answer.len() > MAX_ANSWER {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
    }
    drop(output);
    // Wait for the program to exit, now that it has closed its output. A program that does not exit is killed.
    match exit_within(&mut running.0, deadline.saturating_duration_since(Instant::now()))? {
        Some(status) if status.success() => Ok(answer),
        Some(status) => Err(io::Error::other(format!("{} failed: {status}", program.display()))),
        None => Err(io::ErrorKind::TimedOut.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> io::Result<Vec<u8>> {
        answer(Path::new("/bin/sh"), &["-c", script])
    }

    #[test]
    fn returns_the_whole_answer_in_time_or_an_error() {
        assert_eq!(shell("printf hello").expect("an answer"), b"hello");
        assert!(shell("printf hello; exit 3").is_err());
        assert!(shell("yes | head -c 20000000").is_err());
        assert!(answer(Path::new("/no/such/program"), &[]).is_err());
        let begun = Instant::now();
        for hanging in ["sleep 100", "exec >&-; sleep 100", "while :; do echo x; sleep 0.1; done"] {
            let error = shell(hanging).expect_err("it hangs");
            assert_eq!(error.kind(), io::ErrorKind::TimedOut, "{hanging}");
        }
        assert!(begun.elapsed() < Duration::from_secs(5));
    }
}
