//! Container runtimes and their display names.

use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Runtime {
    Docker,
    Podman,
    /// containerd, also the default in Kubernetes.
    Containerd,
    CriO,
    /// A Kubernetes pod whose cgroup does not name the runtime.
    Kubernetes,
    /// LXC, including Incus and LXD.
    Lxc,
    SystemdNspawn,
    Apptainer,
    Singularity,
    /// Slurm, which is not a container runtime but puts each job step in its own cgroup.
    Slurm,
    /// A container with an ID, but an unidentified runtime.
    #[default]
    #[serde(other)]
    Unknown,
}

impl Runtime {
    /// Returns the word shown before a container's name or ID: `docker` in `docker train`.
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
