//! The Python hook of a command: what its environment needs for it, and what its processes said.

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
    /// Where allocation traces go, if they are wanted.
    traces: Option<PathBuf>,
}

impl Hook {
    /// `None` where its files cannot be put anywhere: the command is run without it. `trace`: that each Python process
    /// records its allocations.
    #[must_use]
    pub fn prepare(trace: bool) -> Option<Self> {
        let files = install().inspect_err(|error| tracing::warn!(%error, "no Python hook"));
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

    /// What the command's environment has beyond ours.
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
        if nobody_may_read() {
            all.push(("GPUTOP_HOOK_STATISTICS".into(), "1".into()));
        }
        all
    }

    /// What the command's processes said until now.
    pub(super) fn reports(&self) -> Vec<Report> {
        self.spool.of_run(&self.run)
    }

    pub(super) fn traces_allocations(&self) -> bool {
        self.traces.is_some()
    }

    /// The allocation traces that they left.
    #[must_use]
    pub fn traces(&self) -> Vec<PathBuf> {
        let Some(folder) = &self.traces else {
            return Vec::new();
        };
        let entries = fs::read_dir(folder).into_iter().flatten().flatten();
        let beginning = format!("{}.", self.run);
        let ours = entries.filter(|entry| {
            let name = entry.file_name();
            name.to_str()
                .is_some_and(|name| name.starts_with(&beginning))
        });
        let mut traces: Vec<PathBuf> = ours.map(|entry| entry.path()).collect();
        traces.sort();
        traces
    }
}

/// Under this rule the leave that the hook gives is worth nothing, so it has to tell by itself.
fn nobody_may_read() -> bool {
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
