//! A process as the kernel describes it. What the driver says of it is [`GpuProcess`](super::gpu::GpuProcess);
//! the two are joined by PID where they are shown, and only when the PID namespaces are the same.

use serde::{Deserialize, Serialize};

use super::container::Runtime;
use super::reading::Reading;
use super::units::{Bytes, GpuUuid, Percent, Pid, StartTicks, UnixMillis};

/// Names one process of one boot for ever, however often the PID is used again.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
#[serde(default)]
pub struct ProcessKey {
    pub pid: Pid,
    pub start: StartTicks,
}

/// The facts of one GPU process that a table row shows.
///
/// Text in here is already harmless: control characters made visible, secrets removed, length bounded.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Process {
    pub key: ProcessKey,
    pub started: UnixMillis,
    /// The kernel's short name, at most 15 bytes.
    pub name: String,
    #[serde(skip_serializing_if = "Reading::is_not_read")]
    pub command: Reading<String>,
    #[serde(skip_serializing_if = "Reading::is_not_read")]
    pub user: Reading<String>,
    /// The effective user id.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uid: Option<u32>,
    pub state: RunState,
    /// 100 is one core, over the last interval.
    #[serde(skip_serializing_if = "Reading::is_not_read")]
    pub cpu: Reading<Percent>,
    #[serde(skip_serializing_if = "Reading::is_not_read")]
    pub rss: Reading<Bytes>,
    /// RANK, else SLURM_PROCID, of the process's environment.
    #[serde(skip_serializing_if = "Reading::is_not_read")]
    pub rank: Reading<u32>,
    /// LOCAL_RANK, else SLURM_LOCALID.
    #[serde(skip_serializing_if = "Reading::is_not_read")]
    pub local_rank: Reading<u32>,
    /// The batch system's job id.
    #[serde(skip_serializing_if = "Reading::is_not_read")]
    pub job: Reading<String>,
    /// CUDA_VISIBLE_DEVICES as the process was started with it, entry by entry; a program may change it later.
    #[serde(skip_serializing_if = "Reading::is_not_read")]
    pub visible_devices: Reading<Vec<String>>,
    /// PYTORCH_CUDA_ALLOC_CONF, else PYTORCH_ALLOC_CONF, as the process was started with it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub alloc_conf: Option<String>,
    /// Who started it, or has adopted it since.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parent: Option<Parent>,
    /// The command under `gputop run` that it is a part of, where it is not that command itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub run: Option<ProcessKey>,
    /// Its container: a short id, or the name where the runtime has no ids; of a Slurm step `81234.0`.
    #[serde(skip_serializing_if = "Reading::is_not_read")]
    pub container: Reading<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub container_runtime: Option<Runtime>,
    /// What its user called it: `train`, `POD/CONTAINER` of Kubernetes, the image of Apptainer. Not read where the
    /// id is a name.
    #[serde(skip_serializing_if = "Reading::is_not_read")]
    pub container_name: Reading<String>,
    /// Inside a container only: GPUs whose device file this process holds open, since the driver's list cannot
    /// be matched there.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub open_gpus: Vec<GpuUuid>,
}

impl Process {
    /// `docker train`, or without a name that may be read here `docker 3f2a9c8b7c6d`; nothing outside any container.
    pub fn container_words(&self) -> Option<String> {
        let id = self.container.value()?;
        let name = self.container_name.value().unwrap_or(id);
        Some(match self.container_runtime {
            Some(runtime) if name.starts_with("mnt:") => runtime.word().to_owned(),
            Some(runtime) => format!("{} {name}", runtime.word()),
            None => name.clone(),
        })
    }
}

/// The scheduler state of `/proc/PID/stat`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RunState {
    Running,
    Sleeping,
    /// In a system call that cannot be interrupted: waiting for a disk or for the driver.
    Blocked,
    Stopped,
    /// Ended but not yet collected by its parent; its VRAM may still be held.
    Zombie,
    #[default]
    #[serde(other)]
    Unknown,
}

/// What the process screen asks for: read on request, answered once, never recorded.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ProcessDetail {
    pub key: ProcessKey,
    /// One entry an argument.
    pub arguments: Reading<Vec<String>>,
    pub cwd: Reading<String>,
    pub executable: Reading<String>,
    /// Variables on the allow-list carry a value, all others the name only.
    pub environment: Reading<Vec<Variable>>,
    /// Nearest first.
    pub parents: Vec<Parent>,
    pub cgroup: Reading<String>,
    pub threads: Reading<u32>,
    pub open_files: Reading<u32>,
    /// RLIMIT_NOFILE's soft limit.
    pub open_files_limit: Reading<u32>,
    pub swapped: Reading<Bytes>,
    /// Locked and pinned host memory.
    pub locked: Reading<Bytes>,
}

#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Variable {
    pub name: String,
    /// Absent for every name that is not on the allow-list.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub value: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Parent {
    pub pid: Pid,
    pub name: String,
}
