//! Data that the readers of all processes share.

use std::path::PathBuf;

use gputop_model::{Pid, UnixMillis};
use gputop_peek::process::access::Access;
use gputop_peek::process::stat::StatBuffer;

use super::container::Containers;
use super::user::UserNames;

pub(super) struct Context {
    pub(super) proc_root: PathBuf,
    pub(super) access: Access,
    pub(super) users: UserNames,
    pub(super) containers: Containers,
    pub(super) buffer: StatBuffer,
    pub(super) boot: UnixMillis,
    pub(super) ticks_per_second: u64,
    pub(super) page_size: u64,
}

impl Context {
    pub(super) fn dir(&self, pid: Pid) -> PathBuf {
        self.proc_root.join(pid.to_string())
    }
}
