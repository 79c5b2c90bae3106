//! Reads the Slurm job and the cgroup path from the text of a process's cgroup file. [`container`](super::container)
//! detects containers.
//!
//! Unlike the environment, `/proc/PID/cgroup` is readable by every user, so it also shows the job of other users'
//! processes: `0::/system.slice/slurmstepd.scope/job_81234/step_0/…` is job 81234.

use gputop_model::text::visible;

const MAX_PATH_CHARS: usize = 512;

pub fn slurm_job(cgroup: &str) -> Option<String> {
    segments(cgroup)
        .filter_map(|segment| segment.strip_prefix("job_"))
        .find(|id| !id.is_empty() && id.len() <= 20 && id.bytes().all(|b| b.is_ascii_digit()))
        .map(str::to_owned)
}

/// Returns the cgroup path to show: the path in the unified hierarchy or, if that path is `/`, the longest path in the
/// file.
pub fn path(cgroup: &str) -> Option<String> {
    let paths = || cgroup.lines().filter_map(|line| line.splitn(3, ':').nth(2));
    let unified = cgroup.lines().find_map(|line| line.strip_prefix("0::"));
    let longest = paths().max_by_key(|path| path.len());
    let path = unified.filter(|path| *path != "/").or(longest)?;
    Some(visible(path.as_bytes(), MAX_PATH_CHARS))
}

/// Splits the lines of a cgroup file into path components. The fields before each path become separate items.
pub fn segments(cgroup: &str) -> impl Iterator<Item = &str> {
    // Colons also occur within a path: `cri-containerd:` and systemd's `kubepods-….slice:cri-containerd:ID`.
    cgroup.split(['/', ':', '\n'])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_slurm_job_in_both_cgroup_versions() {
        let v2 = "0::/system.slice/slurmstepd.scope/job_81234/step_0/user/task_0";
        let v1 = "5:devices:/slurm/uid_1000/job_81234/step_batch";
        assert_eq!(slurm_job(v2).as_deref(), Some("81234"));
        assert_eq!(slurm_job(v1).as_deref(), Some("81234"));
        assert_eq!(slurm_job("0::/user.slice/job_x/job_"), None);
    }

    #[test]
    fn shows_the_most_informative_path() {
        assert_eq!(path("0::/user.slice/a.scope").as_deref(), Some("/user.slice/a.scope"));
        assert_eq!(path("4:memory:/batch/7\n1:cpu:/\n0::/").as_deref(), Some("/batch/7"));
        assert_eq!(path("0::/").as_deref(), Some("/"));
        assert_eq!(path(""), None);
    }
}
