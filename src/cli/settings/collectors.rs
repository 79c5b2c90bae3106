//! Collector options for this host, read from gputop's environment.

use std::path::PathBuf;

use gputop_model::{Millis, Permissions};

use crate::collect::agent;
pub use crate::collect::candidates::CANDIDATES_VARIABLE;
use crate::collect::kernel_log::KERNEL_LOG;
pub use crate::collect::kernel_log::KERNEL_LOG_VARIABLE;
pub use crate::collect::nvml::library::LIBRARY_VARIABLE;
use crate::collect::process::container::Files;

/// Environment variable with the root of sysfs, for tests.
const SYS_VARIABLE: &str = "GPUTOP_SYS";

pub fn agent_options(interval: Millis) -> agent::Options {
    agent::Options {
        interval,
        tmux: std::env::var_os("TMUX"),
        tmux_folder: std::env::var_os("TMUX_TMPDIR"),
        library: std::env::var_os(LIBRARY_VARIABLE),
        keeps_gpus_awake: false,
        idle_limit: agent::MIN_IDLE,
        proc_root: PathBuf::from("/proc"),
        sys_root: std::env::var_os(SYS_VARIABLE).map_or_else(|| "/sys".into(), PathBuf::from),
        container_files: Files {
            root: PathBuf::from("/"),
            home: std::env::var_os("HOME").map(PathBuf::from),
        },
        cgroup_root: PathBuf::from("/sys/fs/cgroup"),
        kernel_log: kernel_log_path(),
        finds_candidates: std::env::var_os(CANDIDATES_VARIABLE).is_none_or(|value| value != "0"),
        // Deny all actions. Callers that allow signals override this.
        permissions: Permissions::none("this command does not act on processes or GPUs"),
        is_remote: false,
    }
}

pub fn kernel_log_path() -> PathBuf {
    std::env::var_os(KERNEL_LOG_VARIABLE).map_or_else(|| KERNEL_LOG.into(), PathBuf::from)
}
