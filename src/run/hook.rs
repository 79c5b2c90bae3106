//! The Python hook for a command: its environment variables, and the reports it provides as evidence. Reports contain
//! exceptions that are missing from the logs, and the allocator state at each out-of-memory error.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use gputop_explain::hook_report::HookReport;
use gputop_explain::{Catalogue, LogFindings, LogReader, TextSource};
use gputop_model::event::HookException;
use gputop_model::{HookEvent, HookOom, Incident, ProcessKey, ReportedPool};
use gputop_peek::memory::access::ptrace_scope;
use nix::unistd::geteuid;

use crate::collect::hook::{Report, Spool, install, python_path, traces};

#[derive(Debug)]
pub struct Hook {
    files: PathBuf,
    spool: Spool,
    run: String,
    /// Directory for allocation traces, if tracing is enabled.
    traces: Option<PathBuf>,
}

impl Hook {
    /// Installs the hook. Returns `None` if its files cannot be written; the command then runs without the hook. With
    /// `trace`, each Python process records its allocations.
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

    pub(super) fn reports(&self) -> Vec<Report> {
        self.spool.of_run(&self.run)
    }

    pub(super) fn traces_allocations(&self) -> bool {
        self.traces.is_some()
    }

    /// Returns the paths of the allocation traces written by the command's processes.
    pub fn traces(&self) -> Vec<PathBuf> {
        let Some(folder) = &self.traces else { return Vec::new() };
        let entries = fs::read_dir(folder).into_iter().flatten().flatten();
        let prefix = format!("{}.", self.run);
        let ours = entries.filter(|entry| {
            let name = entry.file_name();
            name.to_str().is_some_and(|name| name.starts_with(&prefix))
        });
        let mut traces: Vec<PathBuf> = ours.map(|entry| entry.path()).collect();
        traces.sort_unstable();
        traces
    }
}

/// Returns true if Yama denies reading other processes (ptrace_scope 2 or higher). The permission granted by the hook
/// then has no effect, so the hook must report the statistics itself.
fn is_reading_denied() -> bool {
    match ptrace_scope(Path::new("/proc")) {
        Some(2) => !geteuid().is_root(),
        Some(scope) => scope > 2,
        None => false,
    }
}

/// The hook's report of an out-of-memory error, and the process that sent it.
pub(super) struct HookEvidence {
    pub(super) report: HookReport,
    pub(super) process: ProcessKey,
    /// Torch version reported by the process: `2.8.0+cu126`.
    pub(super) torch: String,
}

#[derive(Debug, Default)]
pub(super) struct HookReports {
    reports: Vec<Report>,
}

impl HookReports {
    pub(super) fn new(reports: Vec<Report>) -> Self {
        Self { reports }
    }

    fn exceptions(&self) -> impl Iterator<Item = (&Report, &HookException)> {
        // Skip failed notebook cells, because they do not end the process.
        self.reports.iter().flat_map(|report| {
            let exceptions = report.events.iter().filter_map(|e| e.exception.as_deref());
            exceptions.filter(|e| e.r#where != "cell").map(move |e| (report, e))
        })
    }

    /// Parses the traceback of each exception that ended a process, as if it were a log.
    pub(super) fn logs(&self, catalogue: &Catalogue) -> Vec<LogFindings> {
        let read = |(report, exception): (&Report, &HookException)| {
            let mut log = LogReader::of(catalogue, TextSource::Hook);
            log.push(exception.traceback.as_bytes());
            let mut findings = log.finish();
            findings.rank = report.process.rank;
            findings
        };
        self.exceptions().map(read).collect()
    }

    /// Returns the last exception, such as `KeyError: 'labels'`.
    pub(super) fn exception(&self) -> Option<String> {
        let (_, last) = self.exceptions().last()?;
        Some(format!("{}: {}", last.r#type, last.message))
    }

    /// Returns the pools of JAX, TensorFlow and CuPy at the last exception, if memory ran out.
    pub(super) fn pools(&self) -> &[ReportedPool] {
        self.exceptions().last().map_or(&[], |(_, last)| &last.pools)
    }

    /// Returns the hook evidence for the out-of-memory error in `incident`.
    pub(super) fn oom_measurement(&self, incident: &Incident) -> Option<HookEvidence> {
        if incident.family != "oom" {
            return None;
        }
        let wanted = incident.fields.requested_bytes;
        let rank = incident.fields.rank;
        let mut all = self.reports.iter().flat_map(|report| {
            let is_other = rank.is_some() && report.process.rank.is_some_and(|r| Some(r) != rank);
            let events = report.events.iter().filter(move |_| !is_other);
            events.filter_map(move |event| Some((report, event, event.oom.as_deref()?)))
        });
        let matches_request = |(_, _, oom): &(&Report, &HookEvent, &HookOom)| match wanted {
            Some(wanted) => is_near(oom.requested_bytes.0, wanted),
            None => true,
        };
        // Take the last matching error, because the program continued after all earlier ones.
        let (report, event, oom) = all.by_ref().filter(matches_request).last()?;
        Some(HookEvidence {
            report: HookReport::of(event, oom),
            process: report.key,
            torch: report.process.torch.clone(),
        })
    }
}

/// Returns true if two sizes differ by at most 1 %. A small difference is expected, because log text rounds sizes to
/// two decimals.
fn is_near(a: u64, b: u64) -> bool {
    a.abs_diff(b) <= a.max(b) / 100
}
