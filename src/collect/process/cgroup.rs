//! What a process's cgroup tells of it: the container it runs in, and the Slurm job.
//!
//! `/proc/PID/cgroup` can be read by everyone, unlike the environment, so the job of another user's process is
//! known from here.
//!
//! `0::/system.slice/docker-5f0a…64 hex digits….scope` is the container `5f0a…`, shown with twelve digits as
//! `docker ps` does; `0::/system.slice/slurmstepd.scope/job_81234/step_0/…` is the job 81234.

use crate::model::reading::{Reading, Reason};
use crate::model::text::visible;

const ID_DIGITS: usize = 64;
const SHORT_DIGITS: usize = 12;
const MAX_PATH_CHARS: usize = 512;

pub fn container(cgroup: &str) -> Reading<String> {
    segments(cgroup).find_map(container_id).map_or_else(
        || Reading::missing(Reason::Unsupported, "its cgroup names no container"),
        Reading::Value,
    )
}

pub fn slurm_job(cgroup: &str) -> Option<String> {
    segments(cgroup)
        .filter_map(|segment| segment.strip_prefix("job_"))
        .find(|id| !id.is_empty() && id.len() <= 20 && id.bytes().all(|b| b.is_ascii_digit()))
        .map(str::to_owned)
}

/// The path to show: of the unified hierarchy, or the longest of version 1, where the empty ones say nothing.
pub fn path(cgroup: &str) -> Option<String> {
    let paths = || cgroup.lines().filter_map(|line| line.splitn(3, ':').nth(2));
    let unified = cgroup.lines().find_map(|line| line.strip_prefix("0::"));
    let longest = paths().max_by_key(|path| path.len());
    let path = unified.filter(|path| *path != "/").or(longest)?;
    Some(visible(path.as_bytes(), MAX_PATH_CHARS))
}

/// The whole id of a container that has one of 64 digits.
pub fn container_digits(cgroup: &str) -> Option<&str> {
    segments(cgroup).find_map(digits)
}

fn segments(cgroup: &str) -> impl Iterator<Item = &str> {
    // `cri-containerd:` and systemd's `kubepods-….slice:cri-containerd:ID` use colons too.
    cgroup.split(['/', ':', '\n'])
}

fn container_id(segment: &str) -> Option<String> {
    if let Some(name) = segment.strip_prefix("lxc.payload.") {
        return Some(visible(name.as_bytes(), MAX_PATH_CHARS));
    }
    digits(segment).map(|id| id[..SHORT_DIGITS].to_owned())
}

fn digits(segment: &str) -> Option<&str> {
    let bare = segment.strip_suffix(".scope").unwrap_or(segment);
    let id = bare.rsplit('-').next()?;
    let is_id = id.len() == ID_DIGITS && id.bytes().all(|b| b.is_ascii_hexdigit());
    is_id.then_some(id)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "5f0a8b7c6d5e4f3a2b1c0d9e8f7a6b5c4d3e2f1a0b9c8d7e6f5a4b3c2d1e0f9a";

    #[test]
    fn every_runtime_spells_the_container_its_own_way() {
        let spellings = [
            format!("0::/system.slice/docker-{ID}.scope"),
            format!("12:memory:/docker/{ID}\n1:name=systemd:/docker/{ID}"),
            format!("0::/kubepods/burstable/pod1234/{ID}"),
            format!("0::/kubepods.slice/kubepods-pod1.slice/cri-containerd-{ID}.scope"),
            format!("0::/kubepods.slice:cri-containerd:{ID}"),
            format!("0::/machine.slice/libpod-{ID}.scope/container"),
            format!("0::/ecs/task/{ID}"),
        ];
        for cgroup in spellings {
            assert_eq!(
                container(&cgroup).value().map(String::as_str),
                Some("5f0a8b7c6d5e"),
                "{cgroup}"
            );
        }
        assert_eq!(
            container("0::/lxc.payload.web/x")
                .value()
                .map(String::as_str),
            Some("web")
        );
        assert!(
            container("0::/user.slice/user-1000.slice/session-3.scope")
                .why()
                .is_some()
        );
        assert!(container("0::/").why().is_some());
    }

    #[test]
    fn slurm_names_the_job_in_the_cgroup_of_any_user() {
        let v2 = "0::/system.slice/slurmstepd.scope/job_81234/step_0/user/task_0";
        let v1 = "5:devices:/slurm/uid_1000/job_81234/step_batch";
        assert_eq!(slurm_job(v2).as_deref(), Some("81234"));
        assert_eq!(slurm_job(v1).as_deref(), Some("81234"));
        assert_eq!(slurm_job("0::/user.slice/job_x/job_"), None);
    }

    #[test]
    fn the_path_shown_is_the_one_that_says_something() {
        assert_eq!(
            path("0::/user.slice/a.scope").as_deref(),
            Some("/user.slice/a.scope")
        );
        assert_eq!(
            path("4:memory:/batch/7\n1:cpu:/\n0::/").as_deref(),
            Some("/batch/7")
        );
        assert_eq!(path("0::/").as_deref(), Some("/"));
        assert_eq!(path(""), None);
    }
}
