//! Apptainer and Singularity, which put a process into the file system of an image and into no cgroup.
//!
//! Its root is mounted from a session directory of theirs, which `/proc/PID/mountinfo` shows to whoever may read the
//! process: `… / / ro,relatime - overlay overlay ro,lowerdir=/var/lib/apptainer/mnt/session/rootfs`. Where the mounts
//! are hidden or made another way, `APPTAINER_CONTAINER` in its environment tells. The mount namespace is the identity:
//! there is no other.

use super::super::dir::Dir;
use super::super::environment;
use super::super::nul_list::{self, List};
use super::ContainerMatch;
use crate::model::container::Runtime;
use crate::model::text::visible;

const MAX_NAME_CHARS: usize = 64;

/// With the image's file name, where it is told.
pub fn found(
    dir: &Dir,
    environment: Option<&List>,
    ours: Option<u64>,
) -> Option<(ContainerMatch, Option<String>)> {
    // The mounts may be thousands of lines: only those of a process that has mounts of its own are worth reading.
    let namespace = dir.mount_namespace().ok()?;
    if ours? == namespace {
        return None;
    }
    let variable = |names: &[&str]| Some(environment::first(environment?, names)?.to_vec());
    let runtime = by_mounts(dir).or_else(|| {
        let told = |name, runtime| variable(&[name]).map(|_| runtime);
        told("APPTAINER_CONTAINER", Runtime::Apptainer)
            .or_else(|| told("SINGULARITY_CONTAINER", Runtime::Singularity))
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
    Some((
        ContainerMatch::named(runtime, format!("mnt:{namespace}")),
        name,
    ))
}

fn by_mounts(dir: &Dir) -> Option<Runtime> {
    let mounts = nul_list::read(dir.file("mountinfo").ok()?).ok()?;
    of_mounts(&String::from_utf8_lossy(&mounts))
}

/// The last mount over `/` is the one in force.
fn of_mounts(mountinfo: &str) -> Option<Runtime> {
    let root = mountinfo
        .lines()
        .rfind(|line| line.split(' ').nth(4) == Some("/"))?;
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
    fn the_root_mount_in_force_tells() {
        let root = |source: &str| format!("100 90 0:60 / / ro,relatime - overlay {source}\n");
        let session = root("overlay ro,lowerdir=/var/lib/apptainer/mnt/session/rootfs");
        assert_eq!(of_mounts(&session), Some(Runtime::Apptainer));
        let old = root("overlay ro,lowerdir=/usr/local/var/singularity/mnt/session/rootfs");
        assert_eq!(of_mounts(&old), Some(Runtime::Singularity));
        assert_eq!(of_mounts(&format!("{session}{}", root("overlay rw"))), None);
        let elsewhere = session.replace(" / / ", " / /mnt ");
        assert_eq!(of_mounts(&elsewhere), None);
        assert_eq!(of_mounts("nonsense\n"), None);
    }
}
