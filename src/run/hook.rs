//! The Python hook of a command: its environment variables and its reports.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use nix::unistd::geteuid;

use crate::collect::hook::{Report, Spool, install, python_path, traces};

/// The hook of one run.
#[derive(Debug)]
pub struct Hook {
    files: PathBuf,
    spool: Spool,
    run: String,
    /// Directory for allocation traces, if they are enabled.
    traces: Option<PathBuf>,
}

impl Hook {
    /// Installs the hook. Returns `None` if its files cannot be written; the command then runs without it. With
    /// `trace`, each Python process records its allocations.
    #[must_use]
    pub fn prepare(trace: bool) -> Option<Self> {
        let files =
            install().inspect_err(|error| tracing::warn!(%error, "cannot install the Python hook"));
        let spool = Spool::own()?;
        spool.sweep();
        let time = SystemTime::now().duration_since(UNIX_EPOCH);
        let time = time.map_or(0, |time| time.as_millis());
        Some(Self {
            files: files.ok()?,
            spool,
            run: format!("{}-{time}", std::process::id()),
            traces: if trace { traces() } else { None },
        })
    }

    /// Returns the variables to add to the environment of the command.
    #[must_use]
    pub fn environment(&self) -> Vec<(OsString, OsString)> {
        let own = std::env::var_os("PYTHONPATH");
        let path = python_path(&self.files, own.as_deref());
        let spool = self.spool.path().as_os_str().to_owned();
        let mut all = vec![
            ("PYTHONPATH".into(), path),
            ("GPUTOP_HOOK_RUN".into(), self.run.clone().into()),
            ("GPUTOP_HOOK_SPOOL".into(), spool),
        ];
        if let Some(traces) = &self.traces {
            all.push(("GPUTOP_HOOK_TRACE".into(), traces.clone().into()));
        }
        if is_reading_denied() {
            all.push(("GPUTOP_HOOK_STATISTICS".into(), "1".into()));
        }
        all
    }

    /// Returns the reports that the command's processes have written so far.
    pub(super) fn reports(&self) -> Vec<Report> {
        self.spool.of_run(&self.run)
    }

    pub(super) fn traces_allocations(&self) -> bool {
        self.traces.is_some()
    }

    /// Returns the allocation traces that the command's processes wrote.
    #[must_use]
    pub fn traces(&self) -> Vec<PathBuf> {
        let Some(folder) = &self.traces else {
            return Vec::new();
        };
        let entries = fs::read_dir(folder).into_iter().flatten().flatten();
        let prefix = format!("{}.", self.run);
        let ours = entries.filter(|entry| {
            let name = entry.file_name();
            name.to_str().is_some_and(|name| name.starts_with(&prefix))
        });
        let mut traces: Vec<PathBuf> = ours.map(|entry| entry.path()).collect();
        traces.sort();
        traces
    }
}

/// Returns true if Yama denies reading other processes (ptrace_scope 2 or higher). The permission that the hook
/// grants then has no effect, so the hook must report the statistics itself.
fn is_reading_denied() -> bool {
    let scope = fs::read_to_string(Path::new("/proc/sys/kernel/yama/ptrace_scope"));
    match scope
        .ok()
        .and_then(|scope| scope.trim().parse::<u32>().ok())
    {
        Some(2) => !geteuid().is_root(),
        Some(scope) => scope > 2,
        None => false,
    }
}
