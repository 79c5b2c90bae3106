//! The container a process runs in: what runs it, its id, and its name where a file that this user may read tells it.
//!
//! `/proc/PID/cgroup`, which everyone may read, gives runtime and id (`spelling`); the names are in the runtimes' own
//! files (`names`), never asked of a daemon, which might not answer. Apptainer and Singularity make no cgroup: they
//! are known by the root file system they mounted (`image`).
//!
//! The spellings and file formats are those of the runtimes' documentation and sources. Docker, Kubernetes, Podman,
//! CRI-O, LXC, systemd-nspawn, Slurm and Apptainer were not all at hand: the tests lay out their files.

mod cgroup_names;
mod image;
mod names;
mod open_beneath;

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use self::names::Names;
use super::dir::Dir;
use super::nul_list::List;
use crate::model::container::Runtime;
use crate::model::process::Process;
use crate::model::reading::{Reading, Reason};

/// Where the runtimes' files are looked for.
#[derive(Debug, Clone)]
pub struct Files {
    /// `/`, or what stands for it.
    pub root: PathBuf,
    /// The home directory of the user who runs gputop: Podman without root keeps its names there.
    pub home: Option<PathBuf>,
}

/// What a cgroup or a mount says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContainerMatch {
    pub runtime: Runtime,
    /// As the runtime's files know it.
    pub id: String,
    /// As people write it.
    pub shown: String,
    /// The UID of the Kubernetes pod it belongs to.
    pub pod: Option<String>,
}

impl ContainerMatch {
    /// Of a runtime that has names and no ids.
    fn named(runtime: Runtime, name: String) -> Self {
        Self {
            runtime,
            id: name.clone(),
            shown: name,
            pod: None,
        }
    }
}

/// The id by which docker's own files name the container of a process; `None` for other runtimes' containers.
pub fn docker_id(cgroup: &str) -> Option<String> {
    let found = cgroup_names::found(cgroup)?;
    matches!(found.runtime, Runtime::Docker | Runtime::Unknown).then_some(found.id)
}

pub struct Containers {
    names: Names,
    /// The inode of our mount namespace: who shares it has started no image.
    our_mounts: Option<u64>,
}

impl Containers {
    pub fn new(proc_root: &Path, files: Files) -> Self {
        let ours = fs::metadata(proc_root.join("self/ns/mnt"));
        Self {
            names: Names::new(files),
            our_mounts: ours.ok().map(|ours| ours.ino()),
        }
    }

    /// Fills the container's fields. `environment` is there where this user may read it.
    pub fn fill(
        &mut self,
        process: &mut Process,
        cgroup: &str,
        dir: &Dir,
        environment: Option<&List>,
    ) {
        let by_cgroup = cgroup_names::found(cgroup);
        // A step of Slurm may have started an image.
        let by_image = match &by_cgroup {
            Some(found) if found.runtime != Runtime::Slurm => None,
            _ => image::found(dir, environment, self.our_mounts),
        };
        (process.container_runtime, process.container_name) = (None, Reading::default());
        if let Some((found, name)) = by_image {
            process.container_name = name.map_or_else(
                || Reading::missing(Reason::Denied, "its environment names the image"),
                Reading::Value,
            );
            take(process, found);
        } else if let Some(found) = by_cgroup {
            process.container_name = self.names.of(&found, environment);
            take(process, found);
        } else {
            process.container = Reading::missing(
                Reason::Unsupported,
                "neither its cgroup nor its mounts name a container",
            );
        }
    }
}

fn take(process: &mut Process, found: ContainerMatch) {
    process.container = Reading::Value(found.shown);
    process.container_runtime = Some(found.runtime);
}
