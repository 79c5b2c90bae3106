//! Container runtimes and their display names.

use serde::{Deserialize, Serialize};

/// The runtime that created a container, detected from its cgroup or its root file system.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Runtime {
    Docker,
    Podman,
    /// Also used by Kubernetes, where it is the default.
    Containerd,
    CriO,
    /// A pod whose cgroup does not name the runtime.
    Kubernetes,
    /// Includes Incus and LXD.
    Lxc,
    SystemdNspawn,
    Apptainer,
    Singularity,
    /// Not a container in the narrow sense: Slurm puts each job step in its own cgroup.
    Slurm,
    /// A container ID was found, but nothing that identifies the runtime.
    #[default]
    #[serde(other)]
    Unknown,
}

impl Runtime {
    /// Returns the word shown before a container's name or ID: `docker train`.
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
