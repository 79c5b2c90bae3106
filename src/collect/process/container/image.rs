//! Detects Apptainer and Singularity containers. These runtimes run a process in an image's file system, but do not
//! create a cgroup.
//!
//! The container's root is mounted from the runtime's session directory, which `/proc/PID/mountinfo` shows if this user
//! can read the process: `… / / ro,relatime - overlay overlay ro,lowerdir=/var/lib/apptainer/mnt/session/rootfs`. If
//! the mounts cannot be read or look different, `APPTAINER_CONTAINER` in the environment is used instead. The mount
//! namespace serves as the container ID, because the runtime assigns none.

use gputop_model::container::Runtime;
use gputop_model::text::visible;

use super::super::dir::Dir;
use super::super::environment;
use super::super::nul_list::{self, NulList};
use crate::collect::process::container::found::ContainerMatch;

const MAX_NAME_CHARS: usize = 64;

/// Returns the container, and the image's file name if the environment contains one.
pub fn find(
    dir: &Dir,
    environment: Option<&NulList>,
    own: Option<u64>,
) -> Option<(ContainerMatch, Option<String>)> {
    // Read the mounts only if the process has its own mount namespace, because the mount list can have thousands of
    // lines.
    let namespace = dir.mount_namespace().ok()?;
    if own? == namespace {
        return None;
    }
    let variable = |names: &[&str]| Some(environment::first(environment?, names)?.to_vec());
    let runtime = by_mounts(dir).or_else(|| {
        let if_set = |name, runtime| variable(&[name]).map(|_| runtime);
        if_set("APPTAINER_CONTAINER", Runtime::Apptainer)
            .or_else(|| if_set("SINGULARITY_CONTAINER", Runtime::Singularity))
    })?;
    let name = variable(&[
        "APPTAINER_NAME",
        "SINGULARITY_NAME",
        "APPTAINER_CONTAINER",
        "SINGULARITY_CONTAINER",
    ]);
    let name = name.map(|path| {
        let file = path.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
        visible(file, MAX_NAME_CHARS)
    });
    Some((ContainerMatch::named(runtime, format!("mnt:{namespace}")), name))
}

fn by_mounts(dir: &Dir) -> Option<Runtime> {
    let mounts = nul_list::read(dir.file("mountinfo").ok()?).ok()?;
    runtime_from_mounts(&String::from_utf8_lossy(&mounts))
}

/// Finds the container runtime in a mount list. The last mount of `/` is the visible one.
fn runtime_from_mounts(mountinfo: &str) -> Option<Runtime> {
    let root = mountinfo.lines().rfind(|line| line.split(' ').nth(4) == Some("/"))?;
    let (_, source) = root.split_once(" - ")?;
    [
        ("/apptainer/mnt/session", Runtime::Apptainer),
        ("/singularity/mnt/session", Runtime::Singularity),
    ]
    .into_iter()
    .find_map(|(directory, runtime)| source.contains(directory).then_some(runtime))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn detects_runtime_from_visible_root_mount() {
        let root = |source: &str| format!("100 90 0:60 / / ro,relatime - overlay {source}\n");
        let session = root("overlay ro,lowerdir=/var/lib/apptainer/mnt/session/rootfs");
        assert_eq!(runtime_from_mounts(&session), Some(Runtime::Apptainer));
        let old = root("overlay ro,lowerdir=/usr/local/var/singularity/mnt/session/rootfs");
        assert_eq!(runtime_from_mounts(&old), Some(Runtime::Singularity));
        assert_eq!(runtime_from_mounts(&format!("{session}{}", root("overlay rw"))), None);
        let elsewhere = session.replace(" / / ", " / /mnt ");
        assert_eq!(runtime_from_mounts(&elsewhere), None);
        assert_eq!(runtime_from_mounts("nonsense\n"), None);
    }
}
