//! Recording for `gputop run --summary`: a `gputop record` process that runs alongside the command.
//!
//! The recorder is a separate process, so that it shares no signals, limits or terminal with the command. It stops when
//! its standard input is closed, which also happens if `gputop run` is killed.

use std::io::{PipeReader, Read};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use color_eyre::Result;
use color_eyre::eyre::{OptionExt, WrapErr, bail};
use gputop_model::process::ProcessKey;
use nix::fcntl::{FcntlArg, OFlag, fcntl};

use super::print::say;
use super::record;
use super::settings::Flags;
use super::summary::{add_fit, summarize};
use crate::child_exit::exit_within;
use crate::export::summary::short;
use crate::source::layout::FILE_EXTENSION;
use crate::source::replay::Recording;

/// Maximum time to complete the recording after the command has exited.
const FINISH_TIMEOUT: Duration = Duration::from_secs(10);

pub struct BackgroundRecorder {
    child: Child,
    /// Messages that the recording process wrote to stderr.
    messages: PipeReader,
    path: PathBuf,
}

impl BackgroundRecorder {
    /// Starts recording to `path`, or to a new file in the working directory. `flags` holds the flags given to
    /// `gputop run`.
    pub fn start(path: Option<&PathBuf>, flags: &Flags) -> Result<Self> {
        let default = || {
            let pid = std::process::id();
            PathBuf::from(format!("gputop-run-{}-{pid}{FILE_EXTENSION}", record::date()))
        };
        let path = path.cloned().unwrap_or_else(default);
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["record", "--until-eof", "--output"]).arg(&path);
        if let Some(config) = &flags.config {
            command.arg("--config").arg(config);
        }
        if let Some(on_incident) = flags.text_of("on_incident") {
            command.args(["--on-incident", on_incident]);
        }
        // Make the pipe non-blocking: nothing reads the messages until the recording ends, and a full pipe must not
        // block the recorder.
        let (messages, writer) = std::io::pipe()?;
        fcntl(&writer, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
        let command = command.stdin(Stdio::piped()).stdout(Stdio::null());
        // Use a separate process group, so that the recorder does not receive the terminal's signals.
        let command = command.stderr(writer).process_group(0);
        let child = command.spawn().wrap_err("cannot start the recording")?;
        Ok(Self { child, messages, path })
    }

    /// Stops the recorder and prints a summary of the command from the recording.
    pub fn summarize(
        mut self,
        process: Option<ProcessKey>,
        traces: Option<&[PathBuf]>,
    ) -> Result<()> {
        self.stop()?;
        let path = self.path.display().to_string();
        let recording = Recording::open(&self.path)?;
        let process = process.ok_or_eyre("the command's process was not found in /proc")?;
        let mut run = summarize(&recording, &path)?.of_run(process);
        let mut unproven = traces.map(|_| "the program saved no allocation trace".to_owned());
        for trace in traces.unwrap_or_default() {
            unproven = add_fit(&mut run, trace).err().map(|why| why.to_string());
        }
        let text = short(&run, unproven.as_deref(), super::print::width_of(true));
        say(&format!("\n{text}Recording: {path}\n"));
        Ok(())
    }

    fn stop(&mut self) -> Result<()> {
        drop(self.child.stdin.take());
        let Some(status) = exit_within(&mut self.child, FINISH_TIMEOUT)? else {
            bail!("the recording was not completed in time");
        };
        if !status.success() {
            let mut text = String::new();
            let _ = self.messages.read_to_string(&mut text);
            let last = text.trim().lines().last().unwrap_or_default();
            bail!("{}", last.trim_start_matches("gputop: "));
        }
        Ok(())
    }
}
