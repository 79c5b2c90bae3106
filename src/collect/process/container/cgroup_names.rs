//! Finds the container of a process in its cgroup path. Each runtime has its own naming scheme.
//!
//! `0::/system.slice/docker-5f0a…64 hex digits….scope` is the Docker container `5f0a…`, shown with 12 digits as in
//! `docker ps`. In Kubernetes, the pod's UID comes before the container ID. LXC containers have names but no IDs. Slurm
//! paths contain a job step as `job_81234/step_0`, which users write as `81234.0`. For nested containers, the outermost
//! one is returned, because this host's runtime manages it.

use gputop_model::container::Runtime;
use gputop_model::text::visible;

use super::super::cgroup::segments;
use crate::collect::process::container::found::ContainerMatch;

const ID_DIGITS: usize = 64;
const SHORT_DIGITS: usize = 12;
const MAX_NAME_CHARS: usize = 64;

pub fn find(cgroup: &str) -> Option<ContainerMatch> {
    let first_line = |parse: fn(&[&str]) -> Option<ContainerMatch>| {
        cgroup.lines().find_map(|line| {
            let path: Vec<&str> = segments(line).collect();
            parse(&path)
        })
    };
    first_line(with_id).or_else(|| first_line(with_name)).or_else(|| first_line(slurm_step))
}

fn with_id(path: &[&str]) -> Option<ContainerMatch> {
    let (at, prefix, id) = path.iter().enumerate().find_map(|(at, segment)| {
        let bare = segment.strip_suffix(".scope").unwrap_or(segment);
        let (prefix, id) = bare.rsplit_once('-').unwrap_or(("", bare));
        let is_id = id.len() == ID_DIGITS && id.bytes().all(|b| b.is_ascii_hexdigit());
        is_id.then_some((at, prefix, id))
    })?;
    let before = &path[..at];
    let pod = before.iter().find_map(|segment| pod_uid(segment));
    let runtime = runtime(prefix)
        .or_else(|| before.iter().rev().find_map(|segment| runtime(segment)))
        .unwrap_or(match pod {
            Some(_) => Runtime::Kubernetes,
            None => Runtime::Unknown,
        });
    Some(ContainerMatch { runtime, id: id.to_owned(), shown: id[..SHORT_DIGITS].to_owned(), pod })
}

/// Returns the container runtime that `word` identifies. `word` is the prefix of a container ID or a parent directory
/// in the cgroup path.
fn runtime(word: &str) -> Option<Runtime> {
    Some(match word {
        "docker" | "ecs" => Runtime::Docker,
        "cri-containerd" | "containerd" | "nerdctl" => Runtime::Containerd,
        "crio" => Runtime::CriO,
        word if word.starts_with("libpod") => Runtime::Podman,
        _ => return None,
    })
}

/// Returns the Kubernetes pod's UID from `pod8a1c…` or `kubepods-burstable-pod8a1c_….slice`. A UID has 36 characters;
/// systemd replaces its hyphens with underscores.
fn pod_uid(segment: &str) -> Option<String> {
    let bare = segment.strip_suffix(".slice").unwrap_or(segment);
    let uid = bare.rsplit_once("pod")?.1.replace('_', "-");
    let is_uid = uid.len() == 36 && uid.bytes().all(|b| b == b'-' || b.is_ascii_hexdigit());
    is_uid.then_some(uid)
}

fn with_name(path: &[&str]) -> Option<ContainerMatch> {
    let below_lxc = path.iter().skip_while(|segment| **segment != "lxc").nth(1);
    let payload = path.iter().find_map(|segment| segment.strip_prefix("lxc.payload."));
    let name = payload.or(below_lxc.copied()).filter(|name| !name.is_empty())?;
    Some(ContainerMatch::named(Runtime::Lxc, visible(name.as_bytes(), MAX_NAME_CHARS)))
}

fn slurm_step(path: &[&str]) -> Option<ContainerMatch> {
    let part = |prefix: &str| {
        let after = |segment: &&str| segment.strip_prefix(prefix).map(str::to_owned);
        let is_plain = |text: &String| {
            (1..=20).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_alphanumeric())
        };
        path.iter().find_map(after).filter(is_plain)
    };
    let job = part("job_").filter(|job| job.bytes().all(|b| b.is_ascii_digit()))?;
    let step = part("step_")?;
    Some(ContainerMatch::named(Runtime::Slurm, format!("{job}.{step}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "5f0a8b7c6d5e4f3a2b1c0d9e8f7a6b5c4d3e2f1a0b9c8d7e6f5a4b3c2d1e0f9a";
    const POD: &str = "8a1c3b52-91d4-4a6e-b1f0-2c7d5e9f0a11";

    fn find_shown(cgroup: &str) -> Option<(Runtime, String)> {
        find(cgroup).map(|found| (found.runtime, found.shown))
    }

    #[test]
    fn detects_container_of_each_runtime() {
        let slice = format!("kubepods-burstable-pod{}.slice", POD.replace('-', "_"));
        let spellings = [
            (Runtime::Docker, format!("0::/system.slice/docker-{ID}.scope")),
            (Runtime::Docker, format!("12:memory:/docker/{ID}\n1:name=systemd:/docker/{ID}")),
            (Runtime::Docker, format!("0::/ecs/task/{ID}")),
            (Runtime::Docker, format!("0::/docker/{ID}/kubepods/pod{POD}/crio-{ID}")),
            (Runtime::Kubernetes, format!("0::/kubepods/burstable/pod{POD}/{ID}")),
            (Runtime::Containerd, format!("0::/kubepods.slice/{slice}/cri-containerd-{ID}.scope")),
            (Runtime::Containerd, format!("0::/kubepods.slice:cri-containerd:{ID}")),
            (Runtime::CriO, format!("0::/kubepods.slice/{slice}/crio-{ID}.scope")),
            (Runtime::Podman, format!("0::/machine.slice/libpod-{ID}.scope/container")),
            (Runtime::Podman, format!("4:pids:/libpod_parent/libpod-{ID}")),
            (Runtime::Unknown, format!("0::/batch/{ID}")),
        ];
        for (runtime, cgroup) in spellings {
            let expected = Some((runtime, "5f0a8b7c6d5e".to_owned()));
            assert_eq!(find_shown(&cgroup), expected, "{cgroup}");
        }
    }

    #[test]
    fn finds_pod_uid_in_both_spellings() {
        for pod in [format!("pod{POD}"), format!("kubepods-pod{}.slice", POD.replace('-', "_"))] {
            let found = find(&format!("0::/kubepods/{pod}/{ID}")).expect("test setup");
            assert_eq!(found.pod.as_deref(), Some(POD));
        }
        let short = find(&format!("0::/kubepods/pod1234/{ID}")).expect("test setup");
        assert_eq!((short.pod, short.runtime), (None, Runtime::Unknown));
    }

    #[test]
    fn returns_name_for_runtimes_without_ids() {
        let named = |runtime, name: &str| Some((runtime, name.to_owned()));
        for (cgroup, expected) in [
            ("0::/lxc.payload.web/x", named(Runtime::Lxc, "web")),
            ("4:cpu:/lxc/web", named(Runtime::Lxc, "web")),
            (
                "0::/system.slice/slurmstepd.scope/job_81234/step_0/user/task_0",
                named(Runtime::Slurm, "81234.0"),
            ),
            (
                "5:devices:/slurm/uid_1000/job_81234/step_batch",
                named(Runtime::Slurm, "81234.batch"),
            ),
            ("5:devices:/slurm/uid_1000/job_8\u{1b}[1m/step_0", None),
            ("0::/user.slice/user-1000.slice/session-3.scope", None),
            ("0::/", None),
            ("", None),
        ] {
            assert_eq!(find_shown(cgroup), expected, "{cgroup}");
        }
        let hostile = find_shown("0::/lxc.payload.a\u{202e}b").expect("test setup").1;
        assert_eq!(hostile, "a\\u{202e}b");
    }
}
