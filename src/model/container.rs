//! What runs a container, by the name its users know.

use serde::{Deserialize, Serialize};

/// The runtime that made a container, as its cgroup or its root file system names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Runtime {
    Docker,
    Podman,
    /// Also below Kubernetes, where it is the usual one.
    Containerd,
    CriO,
    /// A pod whose cgroup does not say which runtime serves it.
    Kubernetes,
    /// Also Incus and LXD.
    Lxc,
    SystemdNspawn,
    Apptainer,
    Singularity,
    /// No container in the narrow sense: the step of a job, which Slurm keeps in a cgroup of its own.
    Slurm,
    /// An id is there and nothing says whose.
    #[default]
    #[serde(other)]
    Unknown,
}

impl Runtime {
    /// The word before a container's name or id: `docker train`.
    pub fn word(self) -> &'static str {
        match self {
            Self::Docker => "docker",
            Self::Podman => "podman",
            Self::Containerd => "containerd",
            Self::CriO => "cri-o",
            Self::Kubernetes => "pod",
            Self::Lxc => "lxc",
            Self::SystemdNspawn => "nspawn",
            Self::Apptainer => "apptainer",
            Self::Singularity => "singularity",
            Self::Slurm => "slurm",
            Self::Unknown => "container",
        }
    }
}
