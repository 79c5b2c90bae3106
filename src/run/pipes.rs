//! Handles standard streams of the command that are pipes, as in `gputop run CMD 2>&1 | tee log`.
//!
//! ```text
//!   command ── pipe of gputop ──► copying thread ── inherited pipe ──► tee
//!                                     │
//!                                     ▼
//!                              captured output
//! ```
//!
//! The bytes are copied unchanged. The command still writes to a pipe, so it buffers its output as it would without
//! gputop. If standard output and standard error are one pipe, the command gets one pipe for both, which keeps the order
//! of the bytes. When the reader of a pipe exits, the command receives SIGPIPE at its next write.

use std::fs::File;
use std::io::{self, PipeReader, PipeWriter, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::process::Stdio;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::{self, Builder, JoinHandle};
use std::time::Duration;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::output::CapturedOutput;
use super::signals::{Received, Signals, run_until_cancelled};

/// Size of one read, equal to the default capacity of a pipe.
const CHUNK_BYTES: usize = 64 << 10;
/// Interval between signal checks while a slow reader accepts the remaining output.
const SIGNAL_CHECK_INTERVAL: Duration = Duration::from_millis(20);

#[derive(Default)]
pub struct PipedStreams(Vec<PipedStream>);

struct PipedStream {
    /// Descriptor numbers of the command's standard streams that this pipe replaces: 1, 2 or both.
    streams: Vec<usize>,
    /// Write end for the command. `None` once the command has inherited it.
    writer: Option<PipeWriter>,
    /// Pipe end that is dropped to tell the copying thread that the command has exited.
    is_running: Option<PipeWriter>,
    captured: Receiver<CapturedOutput>,
    thread: JoinHandle<()>,
}

impl PipedStreams {
    /// Replaces the standard streams that are pipes. A pipe that cannot be replaced is inherited by the command.
    pub(super) fn open() -> Self {
        let stdout = identity(io::stdout().as_fd());
        let stderr = identity(io::stderr().as_fd());
        let mut all = Vec::new();
        if stdout.is_some() {
            let is_shared = stdout == stderr;
            let streams = if is_shared { vec![1, 2] } else { vec![1] };
            all.extend(PipedStream::open(streams, io::stdout().as_fd()));
        }
        if stderr.is_some() && stdout != stderr {
            all.extend(PipedStream::open(vec![2], io::stderr().as_fd()));
        }
        Self(all)
    }

    /// Returns the pipe that replaces standard stream `n` of the command.
    pub(super) fn stdio(&self, n: usize) -> Option<Stdio> {
        let stream = self.0.iter().find(|stream| stream.streams.contains(&n))?;
        Some(stream.writer.as_ref()?.try_clone().ok()?.into())
    }

    pub(super) fn close_writers(&mut self) {
        for stream in &mut self.0 {
            stream.writer = None;
        }
    }

    /// Waits until the output of the exited command has been passed on to the reader, then returns it. Gives up when a
    /// signal arrives, because the reader may never accept the remaining output.
    pub(super) fn captured(&mut self, signals: &Signals) -> Vec<CapturedOutput> {
        let mut all = Vec::new();
        let mut waiting = Vec::new();
        for stream in &mut self.0 {
            stream.is_running = None;
            waiting.push(&stream.captured);
        }
        while let Some(captured) = waiting.last() {
            match captured.recv_timeout(SIGNAL_CHECK_INTERVAL) {
                Ok(output) => {
                    all.push(output);
                    waiting.pop();
                }
                Err(RecvTimeoutError::Disconnected) => drop(waiting.pop()),
                Err(RecvTimeoutError::Timeout) => {
                    let mut received = std::iter::from_fn(|| signals.next());
                    if received.any(Received::ends_the_wait) {
                        self.0.clear();
                        break;
                    }
                }
            }
        }
        all
    }

    fn are_closed(&self) -> bool {
        self.0.iter().all(|stream| stream.thread.is_finished())
    }
}

impl Drop for PipedStreams {
    /// Waits until no process can write to the pipes, or until a signal arrives.
    fn drop(&mut self) {
        for stream in &mut self.0 {
            (stream.writer, stream.is_running) = (None, None);
        }
        if self.are_closed() {
            return;
        }
        run_until_cancelled(|is_cancelled| {
            while !self.are_closed() && !is_cancelled.load(Ordering::Relaxed) {
                thread::sleep(SIGNAL_CHECK_INTERVAL);
            }
        });
    }
}

impl PipedStream {
    fn open(streams: Vec<usize>, to: BorrowedFd<'_>) -> io::Result<Self> {
        let (from, writer) = io::pipe()?;
        let (exited, is_running) = io::pipe()?;
        let to = File::from(to.try_clone_to_owned()?);
        let (report, captured) = channel();
        let copy = move || copy(from, to, exited, report);
        let thread = Builder::new().name("output pipe".into()).spawn(copy)?;
        Ok(Self { streams, writer: Some(writer), is_running: Some(is_running), captured, thread })
    }
}

/// Returns the device and inode numbers of a pipe, or `None` if the stream is not a pipe.
fn identity(fd: BorrowedFd<'_>) -> Option<(u64, u64)> {
    let metadata = File::from(fd.try_clone_to_owned().ok()?).metadata().ok()?;
    let is_pipe = metadata.file_type().is_fifo();
    is_pipe.then(|| (metadata.dev(), metadata.ino()))
}

/// Copies until no process can write to `from`, or until `to` accepts no more data. `exited` closes when the command
/// has exited; `report` then receives the output so far.
fn copy(mut from: PipeReader, mut to: File, exited: PipeReader, report: Sender<CapturedOutput>) {
    let mut output = CapturedOutput::default();
    let mut exited = Some(exited);
    let mut report = Some(report);
    let mut chunk = vec![0; CHUNK_BYTES];
    loop {
        let mut fds = vec![PollFd::new(from.as_fd(), PollFlags::POLLIN)];
        fds.extend(exited.iter().map(|fd| PollFd::new(fd.as_fd(), PollFlags::POLLIN)));
        // Once the command has exited, an empty pipe means that all of its output has been copied.
        let is_draining = exited.is_none() && report.is_some();
        let timeout = if is_draining { PollTimeout::ZERO } else { PollTimeout::NONE };
        if poll(&mut fds, timeout).is_err_and(|error| error != Errno::EINTR) {
            break;
        }
        let is_ready = |n: usize| fds.get(n).and_then(PollFd::any).unwrap_or(false);
        let (has_output, has_exited) = (is_ready(0), is_ready(1));
        if has_exited {
            exited = None;
        }
        if !has_output {
            if is_draining && let Some(report) = report.take() {
                let _ = report.send(std::mem::take(&mut output));
            }
            continue;
        }
        match from.read(&mut chunk) {
            Ok(0) => break,
            Ok(n) => {
                if report.is_some() {
                    output.push(&chunk[..n]);
                }
                if write_all(&mut to, &chunk[..n]).is_err() {
                    break;
                }
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => break,
        }
    }
    if let Some(report) = report {
        let _ = report.send(output);
    }
}

/// Writes all bytes, even if another process has made the inherited pipe non-blocking.
fn write_all(to: &mut File, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        match to.write(bytes) {
            Ok(n) => bytes = &bytes[n..],
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                let mut fds = [PollFd::new(to.as_fd(), PollFlags::POLLOUT)];
                let _ = poll(&mut fds, PollTimeout::NONE);
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
