//! Reads facts about a process that rarely change: its command line, user, rank, job and container.
//!
//! These facts are read when a process is first seen, after an exec, and about twice a minute. In between, the last
//! values are reused.

use std::io;
use std::path::Path;

use gputop_model::redact;
use gputop_model::text::visible;
use gputop_model::{Missing, Process, Reading, Reason};
use gputop_peek::process::access::Access;

use super::dir::Dir;
use super::nul_list::NulList;
use super::{cgroup, environment};
use crate::collect::process::context::Context;

const MAX_COMMAND_CHARS: usize = 4096;
const MAX_NAME_CHARS: usize = 64;

/// Fills the rarely changing fields of `process`. `uid` caches the user ID until an exec.
pub fn read_into(process: &mut Process, uid: &mut Option<u32>, reading: &mut Context) {
    let access = &reading.access;
    let dir = match Dir::open(&reading.dir(process.key.pid)) {
        Ok(dir) => dir,
        Err(error) => return fill_missing(process, &access.missing("the process", &error)),
    };
    if let Some(parent) = &mut process.parent {
        parent.name = name(&reading.dir(parent.pid));
    }
    process.command = command(&dir, access);
    let owner = own_uid(&dir, uid);
    process.uid = owner.as_ref().ok().copied();
    process.user = match owner {
        Ok(uid) => Reading::Value(reading.users.name(uid)),
        Err(error) => Reading::Missing(access.missing("the user", &error)),
    };
    let (cgroup, environment) = (dir.cgroup(), dir.list("environ"));
    match &cgroup {
        Ok(text) => {
            reading.containers.fill(process, text, &dir, environment.as_ref().ok());
        }
        Err(error) => process.container = Reading::Missing(access.missing("the cgroup", error)),
    }
    let job = cgroup.ok().and_then(|text| cgroup::slurm_job(&text));
    fill_launch(process, environment, job, access);
}

/// Returns the kernel's short name of a process, or an empty string if it cannot be read.
fn name(dir: &Path) -> String {
    let text = std::fs::read(dir.join("comm")).unwrap_or_default();
    visible(text.trim_ascii_end(), MAX_NAME_CHARS)
}

/// Returns the user ID of a process. Reads the ID only once, because the user ID of a GPU process changes only with an
/// exec, and `status` is the most expensive file to read.
fn own_uid(dir: &Dir, known: &mut Option<u32>) -> io::Result<u32> {
    let uid = match *known {
        Some(uid) => uid,
        None => dir.status()?.euid,
    };
    *known = Some(uid);
    Ok(uid)
}

pub fn fill_missing(process: &mut Process, missing: &Missing) {
    let text = || Reading::Missing(missing.clone());
    process.command = text();
    process.user = text();
    process.job = text();
    process.container = text();
    process.rank = Reading::Missing(missing.clone());
    process.local_rank = Reading::Missing(missing.clone());
}

fn fill_launch(
    process: &mut Process,
    environment: io::Result<NulList>,
    cgroup_job: Option<String>,
    access: &Access,
) {
    match environment {
        Ok(environment) => {
            process.rank = environment::rank(&environment);
            process.local_rank = environment::local_rank(&environment);
            process.visible_devices = environment::visible_devices(&environment);
            process.alloc_conf = environment::alloc_conf(&environment);
            process.pool_conf = environment::pool_conf(&environment);
            let job = environment::job(&environment).or(cgroup_job);
            let why = "no job ID found in the process's environment";
            process.job = Reading::or_missing(job, Reason::Unsupported, why);
        }
        Err(error) => {
            let missing = access.missing("the environment", &error);
            process.rank = Reading::Missing(missing.clone());
            process.local_rank = Reading::Missing(missing.clone());
            process.visible_devices = Reading::Missing(missing.clone());
            process.job = cgroup_job.map_or(Reading::Missing(missing), Reading::Value);
        }
    }
}

fn command(dir: &Dir, access: &Access) -> Reading<String> {
    let arguments = match dir.list("cmdline") {
        Ok(list) => list,
        Err(error) => return Reading::Missing(access.missing("the command line", &error)),
    };
    let mut line = redact::command(arguments.entries());
    if line.is_empty() {
        return Reading::missing(Reason::Unsupported, "the process has no command line");
    }
    if arguments.is_truncated {
        line.extend_from_slice(" …".as_bytes());
    }
    Reading::Value(visible(&line, MAX_COMMAND_CHARS))
}
