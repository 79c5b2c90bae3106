//! Defines metric labels that describe a process. No label contains an argument of the process's command.

use crate::model::container::Runtime;
use crate::model::process::Process;

#[derive(Debug)]
pub struct ProcessLabel {
    pub name: &'static str,
    pub(super) value: fn(&Process) -> Option<String>,
}

/// All labels of the metric `gputop_process_info` except `host` and `pid`.
#[rustfmt::skip]
pub static PROCESS_LABELS: &[ProcessLabel] = &[
    ProcessLabel { name: "user", value: |process| process.user.value().cloned() },
    ProcessLabel { name: "command", value: |process| Some(script_name(process)) },
    ProcessLabel { name: "rank", value: |process| process.rank.get().map(|rank| rank.to_string()) },
    ProcessLabel { name: "job", value: |process| process.job.value().cloned() },
    ProcessLabel { name: "container", value: |process| pod_and_container(process).1 },
    ProcessLabel { name: "pod", value: |process| pod_and_container(process).0 },
];

/// Returns the name of the program, or of the script run by an interpreter or launcher. Never returns an argument that
/// is not a Python file or module.
fn script_name(process: &Process) -> String {
    let file_name = |path: &str| path.rsplit('/').next().unwrap_or_default().to_owned();
    let Some(command) = process.command.value() else {
        return process.name.clone();
    };
    let mut words = command.split_whitespace();
    let program = file_name(words.next().unwrap_or_default());
    let mut previous = "";
    for word in words {
        if previous == "-c" {
            break;
        }
        if word.ends_with(".py") {
            return file_name(word);
        }
        if previous == "-m" && program.starts_with("python") {
            return word.to_owned();
        }
        previous = word;
    }
    if program.is_empty() { process.name.clone() } else { program }
}

/// Returns a process's Kubernetes pod and container. A Slurm step is not a container.
fn pod_and_container(process: &Process) -> (Option<String>, Option<String>) {
    let Some(id) = process.container.value() else {
        return (None, None);
    };
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_the_script_of_a_command_and_no_argument() {
        for (command, name) in [
            ("/usr/bin/python3 -u /home/ana/train.py --token s.py", "train.py"),
            ("python -m torch.distributed.run --nproc 8 train.py", "torch.distributed.run"),
            ("torchrun --nproc-per-node 8 train.py", "train.py"),
            ("python -c exec(open('secret.py').read())", "python"),
            ("/opt/bin/server --password hunter2", "server"),
            ("", "comm"),
        ] {
            let process = Process {
                name: "comm".into(),
                command: command.to_owned().into(),
                ..Process::default()
            };
            assert_eq!(script_name(&process), name, "{command}");
        }
    }
}
