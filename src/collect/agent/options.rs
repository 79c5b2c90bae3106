//! Options of the agent.

use std::path::PathBuf;

use gputop_model::{Millis, Permissions};

use crate::collect::process::container::Files;

#[derive(Debug, Clone)]
pub struct Options {
    pub interval: Millis,
    /// Path of the NVML library: the value of [`LIBRARY_VARIABLE`](crate::collect::nvml::library::LIBRARY_VARIABLE), if it is
    /// set.
    pub library: Option<std::ffi::OsString>,
    /// True if sleeping GPUs are woken, and idle GPUs are not released.
    pub keeps_gpus_awake: bool,
    /// Time without use after which GPUs that can sleep are released.
    pub idle_limit: std::time::Duration,
    pub proc_root: PathBuf,
    /// Root of sysfs, normally `/sys`.
    pub sys_root: PathBuf,
    pub container_files: Files,
    /// Value of TMUX, which with TMUX_TMPDIR locates this user's tmux servers.
    pub tmux: Option<std::ffi::OsString>,
    pub tmux_folder: Option<std::ffi::OsString>,
    /// Root of the cgroup file system, normally `/sys/fs/cgroup`.
    pub cgroup_root: PathBuf,
    /// Path of the kernel log: `/dev/kmsg`, or the value of
    /// [`KERNEL_LOG_VARIABLE`](crate::collect::kernel_log::KERNEL_LOG_VARIABLE).
    pub kernel_log: PathBuf,
    /// True if programs are followed from the time on at which they load CUDA.
    pub finds_candidates: bool,
    /// Actions that requests may perform.
    pub permissions: Permissions,
    /// True if requests come from a client on another host.
    pub is_remote: bool,
}
