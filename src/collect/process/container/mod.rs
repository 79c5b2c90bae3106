//! Finds a process's container: its runtime, ID and, if this user can read a file that contains it, its name.
//!
//! `/proc/PID/cgroup`, which is readable by every user, contains the runtime and the ID (`cgroup_names`). Names come
//! from the runtimes' files (`names`). Daemons are not queried, because they may not respond. Apptainer and Singularity
//! create no cgroup and are detected from the root file system that they mount (`image`).
//!
//! Cgroup names and file formats follow the documentation and sources of the runtimes. Docker, Kubernetes, Podman,
//! CRI-O, LXC, Slurm and Apptainer were not all available for testing, so the tests create the runtimes' files.

mod cgroup_names;
mod found;
mod image;
mod names;

pub use self::found::{ContainerMatch, Files};

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use gputop_model::container::Runtime;
use gputop_model::{Process, Reading, Reason};

use self::names::Names;
use super::dir::Dir;
use super::nul_list::NulList;

/// Returns the ID of the process's Docker container, or `None` for containers of other runtimes.
pub fn docker_id(cgroup: &str) -> Option<String> {
    let found = cgroup_names::find(cgroup)?;
    matches!(found.runtime, Runtime::Docker | Runtime::Unknown).then_some(found.id)
}

pub struct Containers {
    names: Names,
    /// Inode of gputop's own mount namespace. A process in the same namespace does not run in a container image.
    own_mount_namespace: Option<u64>,
}

impl Containers {
    pub fn new(proc_root: &Path, files: Files) -> Self {
        let own = fs::metadata(proc_root.join("self/ns/mnt"));
        Self { names: Names::new(files), own_mount_namespace: own.ok().map(|own| own.ino()) }
    }

    /// Fills the container fields of `process`. `environment` is `None` if this user cannot read it.
    pub fn fill(
        &mut self,
        process: &mut Process,
        cgroup: &str,
        dir: &Dir,
        environment: Option<&NulList>,
    ) {
        let by_cgroup = cgroup_names::find(cgroup);
        // Look for an Apptainer or Singularity image even if the cgroup belongs to a Slurm step, because both may
        // apply.
        let by_image = match &by_cgroup {
            Some(found) if found.runtime != Runtime::Slurm => None,
            _ => image::find(dir, environment, self.own_mount_namespace),
        };
        (process.container_runtime, process.container_name) = (None, Reading::default());
        if let Some((found, name)) = by_image {
            let why = "the image name is in the process's environment, which cannot be read";
            let missing = || Reading::missing(Reason::Denied, why);
            process.container_name = name.map_or_else(missing, Reading::Value);
            take(process, found);
        } else if let Some(found) = by_cgroup {
            process.container_name = self.names.name(&found, environment);
            take(process, found);
        } else {
            let why = "no container found in the process's cgroup or mounts";
            process.container = Reading::missing(Reason::Unsupported, why);
        }
    }
}

fn take(process: &mut Process, found: ContainerMatch) {
    process.container = Reading::Value(found.shown);
    process.container_runtime = Some(found.runtime);
}
