//! Container runtimes and their display names.

use serde::{Deserialize, Serialize};

crate::named! {
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
    #[serde(rename_all = "snake_case")]
    pub enum Runtime {
        Docker = "docker",
        Podman = "podman",
        /// containerd, also the default in Kubernetes.
        Containerd = "containerd",
        CriO = "cri-o",
        /// A Kubernetes pod whose cgroup does not name the runtime.
        Kubernetes = "pod",
        /// LXC, including Incus and LXD.
        Lxc = "lxc",
        SystemdNspawn = "nspawn",
        Apptainer = "apptainer",
        Singularity = "singularity",
        /// Slurm, which is not a container runtime but puts each job step in its own cgroup.
        Slurm = "slurm",
        /// A container with an ID, but an unidentified runtime.
        #[default]
        #[serde(other)]
        Unknown = "container",
    }
    /// Returns the word shown before a container's name or ID: `docker` in `docker train`.
    fn word;
}
