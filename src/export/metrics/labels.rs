//! Defines metric labels that describe a process. No label contains an argument of the process's command.

use gputop_model::container::Runtime;
use gputop_model::process::Process;

#[derive(Debug)]
pub struct ProcessLabel {
    pub name: &'static str,
    pub(super) value: fn(&Process) -> Option<String>,
}

/// All labels of the metric `gputop_process_info` except `host` and `pid`.
#[rustfmt::skip]
pub static PROCESS_LABELS: &[ProcessLabel] = &[
    ProcessLabel { name: "user", value: |process| process.user.value().cloned() },
    ProcessLabel { name: "command", value: |process| Some(process.program()) },
    ProcessLabel { name: "rank", value: |process| process.rank.get().map(|rank| rank.to_string()) },
    ProcessLabel { name: "job", value: |process| process.job.value().cloned() },
    ProcessLabel { name: "container", value: |process| pod_and_container(process).1 },
    ProcessLabel { name: "pod", value: |process| pod_and_container(process).0 },
];

/// Returns a process's Kubernetes pod and container. A Slurm step is not a container.
fn pod_and_container(process: &Process) -> (Option<String>, Option<String>) {
    let Some(id) = process.container.value() else { return (None, None) };
    let name = process.container_name.value().unwrap_or(id);
    match process.container_runtime {
        Some(Runtime::Slurm) => (None, None),
        // The container's name is an image name, which may contain a slash.
        Some(Runtime::Apptainer | Runtime::Singularity) => (None, Some(name.clone())),
        _ => match name.split_once('/') {
            Some((pod, container)) => (Some(pod.into()), Some(container.into())),
            None => (None, Some(name.clone())),
        },
    }
}
