//! A process as the kernel describes it. The driver's view is [`GpuProcess`](super::gpu::GpuProcess). Screens join both
//! views by PID, but only if the PID namespaces are the same.

use serde::{Deserialize, Serialize};
use serde_with::{apply, skip_serializing_none};

use super::container::Runtime;
use super::reading::Reading;
use super::units::{Bytes, GpuUuid, Percent, Pid, StartTicks, UnixMillis};

/// Key that uniquely identifies a process within one boot, even if its PID is reused.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
#[serde(default)]
pub struct ProcessKey {
    pub pid: Pid,
    pub start: StartTicks,
}

impl ProcessKey {
    pub const fn new(pid: u32, start: u64) -> Self {
        Self { pid: Pid(pid), start: StartTicks(start) }
    }
}

/// Data about a GPU process, as shown in a table row.
///
/// All text in a process is already escaped for display, limited in length, and free of secrets.
#[skip_serializing_none]
#[apply(Reading => #[serde(skip_serializing_if = "Reading::is_not_read")])]
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Process {
    pub key: ProcessKey,
    pub started: UnixMillis,
    /// The kernel's short process name, at most 15 bytes.
    pub name: String,
    pub command: Reading<String>,
    pub user: Reading<String>,
    pub uid: Option<u32>,
    pub state: RunState,
    /// CPU usage over the last interval. 100 is one core.
    pub cpu: Reading<Percent>,
    #[serde(rename = "rss_bytes", alias = "rss")]
    pub rss: Reading<Bytes>,
    /// RANK from the process's environment, or SLURM_PROCID if RANK is not set.
    pub rank: Reading<u32>,
    /// LOCAL_RANK from the process's environment, or SLURM_LOCALID if LOCAL_RANK is not set.
    pub local_rank: Reading<u32>,
    /// The batch system's job ID.
    pub job: Reading<String>,
    /// CUDA_VISIBLE_DEVICES at the start of the process, split into entries. The program may change it later.
    pub visible_devices: Reading<Vec<String>>,
    /// Value of PYTORCH_CUDA_ALLOC_CONF when the process started. If it was not set, the value of PYTORCH_ALLOC_CONF.
    pub alloc_conf: Option<String>,
    /// Settings of JAX's and TensorFlow's pools when the process started: `XLA_PYTHON_CLIENT_MEM_FRACTION=.30`. Separated
    /// by spaces.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pool_conf: Option<String>,
    /// Process that started this process or later adopted it.
    pub parent: Option<Parent>,
    /// The `gputop run` command to which the process belongs, unless the process is that command.
    pub run: Option<ProcessKey>,
    /// Container of the process: a short ID, or the name if the runtime has no IDs. `81234.0` for a Slurm step.
    pub container: Reading<String>,
    pub container_runtime: Option<Runtime>,
    /// User-chosen container name: `train`, `POD/CONTAINER` for Kubernetes, the image for Apptainer. Not read if the
    /// container ID is already a name.
    pub container_name: Reading<String>,
    /// GPUs whose device file the process has open. Set only inside a container, where the driver's process list cannot
    /// be matched.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub open_gpus: Vec<GpuUuid>,
}

impl Process {
    /// Returns the container as `docker train`, or as `docker 3f2a9c8b7c6d` if its name is not readable. Returns `None`
    /// outside a container.
    pub fn container_text(&self) -> Option<String> {
        let id = self.container.value()?;
        let name = self.container_name.value().unwrap_or(id);
        Some(match self.container_runtime {
            Some(runtime) if name.starts_with("mnt:") => runtime.word().to_owned(),
            Some(runtime) => format!("{} {name}", runtime.word()),
            None => name.clone(),
        })
    }

    /// Returns the name of the program, or of the script run by an interpreter or launcher.
    pub fn program(&self) -> String {
        let name = self.command.value().and_then(|command| program_of(command));
        name.unwrap_or_else(|| self.name.clone())
    }
}

/// Name of a program that runs in the cells of a notebook.
pub const NOTEBOOK: &str = "notebook";
/// Module that runs the cells of a notebook.
const NOTEBOOK_KERNEL: &str = "ipykernel_launcher";
/// Beginnings of modules that run a script, whose name follows.
const LAUNCHERS: &[&str] = &["torch.distributed.", "accelerate.commands.", "deepspeed.launcher."];
const SHELLS: &[&str] = &["bash", "sh", "zsh", "dash"];

/// Returns the program's name in a command line, or that of the script run by an interpreter or launcher. Never returns
/// an argument that is not a script or a Python module.
pub fn program_of(command: &str) -> Option<String> {
    let file_name = |path: &str| path.rsplit('/').next().unwrap_or_default().to_owned();
    // An argument with special characters is quoted.
    let mut words = command.split_whitespace().map(|word| word.trim_matches('\''));
    let program = file_name(words.next()?);
    let is_launcher = |module: &str| LAUNCHERS.iter().any(|launcher| module.starts_with(launcher));
    let mut previous = "";
    for word in words {
        if previous == "-c" {
            break;
        }
        if word.ends_with(".py") || (word.ends_with(".sh") && SHELLS.contains(&program.as_str())) {
            return Some(file_name(word));
        }
        if previous == "-m" && program.starts_with("python") && !is_launcher(word) {
            let is_notebook = word == NOTEBOOK_KERNEL;
            return Some(if is_notebook { NOTEBOOK } else { word }.to_owned());
        }
        previous = word;
    }
    (!program.is_empty()).then_some(program)
}

/// Scheduler state in `/proc/PID/stat`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RunState {
    Running,
    Sleeping,
    /// In an uninterruptible system call, waiting for a disk or for the driver.
    Blocked,
    Stopped,
    /// Exited but not yet reaped by the parent process. VRAM may still be held.
    Zombie,
    #[default]
    #[serde(other)]
    Unknown,
}

/// Process data for the process screen: read on request, sent once, never recorded.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ProcessDetail {
    pub key: ProcessKey,
    /// Command-line arguments, one entry each.
    pub arguments: Reading<Vec<String>>,
    pub cwd: Reading<String>,
    pub executable: Reading<String>,
    /// Environment variables. Only those on the allow-list have a value.
    pub environment: Reading<Vec<Variable>>,
    /// Ancestor processes, starting with the parent.
    pub parents: Vec<Parent>,
    pub cgroup: Reading<String>,
    pub threads: Reading<u32>,
    pub open_files: Reading<u32>,
    /// Soft limit of RLIMIT_NOFILE.
    pub open_files_limit: Reading<u32>,
    #[serde(rename = "swapped_bytes", alias = "swapped")]
    pub swapped: Reading<Bytes>,
    /// Locked and pinned host memory of the process.
    #[serde(rename = "locked_bytes", alias = "locked")]
    pub locked: Reading<Bytes>,
}

#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Variable {
    pub name: String,
    /// Value of the variable, if its name is on the allow-list.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub value: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Parent {
    pub pid: Pid,
    pub name: String,
}

/// Shortens `/opt/conda/bin/python3 -u train.py --lr 1` to `train.py --lr 1`. For other programs, removes only the
/// directory.
pub fn without_interpreter(command: &str) -> String {
    const OMITTED_OPTIONS: [&str; 8] = ["-u", "-B", "-E", "-I", "-O", "-OO", "-s", "-S"];
    let (program, rest) = command.split_once(' ').unwrap_or((command, ""));
    let name = program.rsplit('/').next().unwrap_or(program);
    let is_python = name.trim_end_matches(|c: char| c.is_ascii_digit() || c == '.') == "python";
    let words: Vec<&str> =
        rest.split(' ').skip_while(|word| OMITTED_OPTIONS.contains(word)).collect();
    match words.as_slice() {
        [] | [""] => name.to_owned(),
        ["-m", module @ ..] if is_python && !module.is_empty() => module.join(" "),
        words if is_python && !words[0].starts_with('-') => words.join(" "),
        _ => format!("{name} {rest}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_the_script_of_a_command_and_no_argument() {
        for (command, name) in [
            ("/usr/bin/python3 -u /home/ana/train.py --token s.py", "train.py"),
            ("python -m torch.distributed.run --nproc 8 train.py", "train.py"),
            ("python -m pretrain --config base.py", "pretrain"),
            ("python3 -m ipykernel_launcher -f /run/user/7/kernel-1.json", "notebook"),
            ("/bin/bash ./run.sh --token s.py", "run.sh"),
            ("torchrun --nproc-per-node 8 train.py", "train.py"),
            ("python -c exec(open('secret.py').read())", "python"),
            ("/opt/bin/server --password hunter2", "server"),
            ("'say hi' now", "say"),
            ("'python a.py' 1000", "a.py"),
            ("", "comm"),
        ] {
            let process = Process {
                name: "comm".into(),
                command: command.to_owned().into(),
                ..Process::default()
            };
            assert_eq!(process.program(), name, "{command}");
        }
    }

    #[test]
    fn command_omits_the_python_interpreter() {
        for (command, shown) in [
            ("/opt/conda/bin/python3.12 -u train.py --lr 1", "train.py --lr 1"),
            ("python -m torch.distributed.run a.py", "torch.distributed.run a.py"),
            ("python3 -c import torch", "python3 -c import torch"),
            ("/usr/bin/blender scene.blend", "blender scene.blend"),
            ("python3", "python3"),
        ] {
            assert_eq!(without_interpreter(command), shown);
        }
    }
}
