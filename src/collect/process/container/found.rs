//! A container of a process, and the files that name it.

use std::path::PathBuf;

use gputop_model::container::Runtime;

#[derive(Debug, Clone)]
pub struct Files {
    /// Root directory of the file system: `/`, or a substitute in tests.
    pub root: PathBuf,
    /// Home directory of gputop's user, where rootless Podman stores container names.
    pub home: Option<PathBuf>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContainerMatch {
    pub runtime: Runtime,
    /// Container ID in the runtime's files.
    pub id: String,
    /// Container ID as shown to the user.
    pub shown: String,
    /// UID of the Kubernetes pod that contains the container.
    pub pod: Option<String>,
}

impl ContainerMatch {
    /// Creates a match for a runtime that has names but no IDs.
    pub(super) fn named(runtime: Runtime, name: String) -> Self {
        Self { runtime, id: name.clone(), shown: name, pod: None }
    }
}
