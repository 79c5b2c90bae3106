//! Details of one process for the process screen. They are read on request and never recorded.

use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use gputop_model::process::{Parent, ProcessDetail};
use gputop_model::redact;
use gputop_model::text::visible;
use gputop_model::{Bytes, Missing, ProcessKey, Reading, Reason, Variable};
use gputop_peek::process::access::Access;
use gputop_peek::process::stat::{StatBuffer, StatFile, with_ancestors};
use procfs::process::{LimitValue, Status};

use super::cgroup;
use super::dir::Dir;
use super::nul_list::NulList;

const MAX_PATH_CHARS: usize = 4096;
const MAX_ARGUMENT_CHARS: usize = 4096;
const MAX_NAME_CHARS: usize = 64;

/// Reads the details of a process. Compares the start time before and after the read, because the PID may be reused in
/// the meantime.
pub fn read(proc_root: &Path, key: ProcessKey) -> Result<ProcessDetail, Missing> {
    let access = Access::new(proc_root);
    let unreadable = |error: io::Error| access.missing("the process", &error);
    let path = proc_root.join(key.pid.to_string());
    let dir = Dir::open(&path).map_err(unreadable)?;
    let stat = StatFile::open(&path.join("stat")).map_err(unreadable)?;
    let check = || match stat.read(&mut StatBuffer::default()) {
        Ok(stat) if stat.start == key.start => Ok(stat.parent),
        Ok(_) => Err(Missing::new(
            Reason::Gone,
            "the process has exited, and its PID now belongs to a different process",
        )),
        Err(error) => Err(unreadable(error)),
    };
    let parent = check()?;
    let detail = ProcessDetail {
        key,
        parents: with_ancestors(proc_root, parent)
            .map(|(key, name)| Parent { pid: key.pid, name: visible(&name, MAX_NAME_CHARS) })
            .collect(),
        ..Reader { dir: &dir, access: &access }.detail()
    };
    check()?;
    Ok(detail)
}

struct Reader<'a> {
    dir: &'a Dir,
    access: &'a Access,
}

impl Reader<'_> {
    fn detail(&self) -> ProcessDetail {
        let status = self.dir.status();
        let status_field = |field: fn(&Status) -> Option<u64>| match &status {
            Ok(status) => {
                let why = "the kernel does not report this value for the process";
                Reading::or_missing(field(status), Reason::Unsupported, why)
            }
            Err(error) => Reading::Missing(self.access.missing("the status", error)),
        };
        ProcessDetail {
            arguments: self
                .or_missing("the command line", self.dir.list("cmdline"))
                .map(|l| arguments(&l)),
            cwd: self.path("the working directory", self.dir.cwd()),
            executable: self.path("the executable", self.dir.executable()),
            environment: self
                .or_missing("the environment", self.dir.list("environ"))
                .map(|l| environment(&l)),
            cgroup: self.cgroup(),
            threads: status_field(|s| Some(s.threads)).map(saturating_u32),
            open_files: self
                .or_missing("the open files", self.dir.open_files())
                .map(|n| saturating_u32(n as u64)),
            open_files_limit: self.open_files_limit(),
            swapped: status_field(|s| s.vmswap).map(kibibytes),
            locked: status_field(|s| Some(s.vmlck? + s.vmpin.unwrap_or(0))).map(kibibytes),
            ..ProcessDetail::default()
        }
    }

    fn or_missing<T>(&self, what: &str, result: io::Result<T>) -> Reading<T> {
        match result {
            Ok(value) => Reading::Value(value),
            Err(error) => Reading::Missing(self.access.missing(what, &error)),
        }
    }

    fn path(&self, what: &str, path: io::Result<PathBuf>) -> Reading<String> {
        self.or_missing(what, path)
            .map(|path| visible(&redact::text(path.as_os_str().as_bytes()), MAX_PATH_CHARS))
    }

    fn cgroup(&self) -> Reading<String> {
        match self.dir.cgroup() {
            Ok(text) => {
                let why = "the kernel does not support control groups";
                Reading::or_missing(cgroup::path(&text), Reason::Unsupported, why)
            }
            Err(error) => Reading::Missing(self.access.missing("the cgroup", &error)),
        }
    }

    fn open_files_limit(&self) -> Reading<u32> {
        match self.dir.limits().map(|limits| limits.max_open_files.soft_limit) {
            Ok(LimitValue::Value(limit)) => Reading::Value(saturating_u32(limit)),
            Ok(LimitValue::Unlimited) => Reading::Value(u32::MAX),
            Err(error) => Reading::Missing(self.access.missing("the limits", &error)),
        }
    }
}

fn arguments(list: &NulList) -> Vec<String> {
    let mut shown: Vec<String> = redact::arguments(list.entries())
        .iter()
        .map(|argument| visible(argument, MAX_ARGUMENT_CHARS))
        .collect();
    if list.is_truncated {
        shown.push("…".into());
    }
    shown
}

/// Returns the environment variables. Skips entries without `=`, which come from programs that overwrite their process
/// title.
fn environment(list: &NulList) -> Vec<Variable> {
    list.entries()
        .filter_map(|entry| {
            let equals = entry.iter().position(|&b| b == b'=')?;
            Some(redact::variable(&entry[..equals], &entry[equals + 1..]))
        })
        .collect()
}

fn saturating_u32(n: u64) -> u32 {
    u32::try_from(n).unwrap_or(u32::MAX)
}

fn kibibytes(n: u64) -> Bytes {
    Bytes(n.saturating_mul(1024))
}
