//! Reads facts that job launchers set in a process's environment: rank, local rank and job ID.
//!
//! This module reads only a few variables. All variables are shown only on request, after redaction (`redact/`).

use std::fs::File;
use std::path::Path;

use gputop_model::text::visible;
use gputop_model::{Pid, Reading, Reason};

use super::nul_list::NulList;

/// Maximum length of a job ID, which is normally a number or a short name.
const MAX_JOB_CHARS: usize = 64;
/// Maximum length of the allocator options. Setting every option of a PyTorch version takes about half of this.
const MAX_CONF_CHARS: usize = 1024;
/// Maximum length of a pool setting, which is normally a number or a word.
const MAX_SETTING_CHARS: usize = 32;
const MAX_VALUE_CHARS: usize = 64;

/// Environment variables for a rank, in order of precedence.
const RANK: &[&str] = &["RANK", "SLURM_PROCID"];
const LOCAL_RANK: &[&str] = &["LOCAL_RANK", "SLURM_LOCALID"];
/// Job ID variables of Slurm, PBS/Torque and LSF. Grid Engine's JOB_ID is not used, because other programs also set it.
const JOB: &[&str] = &["SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID"];
/// Settings of the pools of JAX and TensorFlow.
const POOL_SETTINGS: &[&str] = &[
    "XLA_PYTHON_CLIENT_ALLOCATOR",
    "XLA_PYTHON_CLIENT_PREALLOCATE",
    "XLA_PYTHON_CLIENT_MEM_FRACTION",
    "TF_FORCE_GPU_ALLOW_GROWTH",
];

pub fn rank(environment: &NulList) -> Reading<u32> {
    number(environment, RANK, "RANK and SLURM_PROCID are not set")
}

pub fn local_rank(environment: &NulList) -> Reading<u32> {
    number(environment, LOCAL_RANK, "LOCAL_RANK and SLURM_LOCALID are not set")
}

pub fn job(environment: &NulList) -> Option<String> {
    first(environment, JOB).or_else(|| pod(environment)).map(|id| visible(id, MAX_JOB_CHARS))
}

/// Returns the entries of CUDA_VISIBLE_DEVICES. An empty value hides every GPU, unlike an unset variable.
pub fn visible_devices(environment: &NulList) -> Reading<Vec<String>> {
    const MAX_DEVICES: usize = 64;
    let set = environment.entries().find_map(|entry| entry.strip_prefix(b"CUDA_VISIBLE_DEVICES="));
    let Some(value) = set else {
        return Reading::missing(Reason::Unsupported, "CUDA_VISIBLE_DEVICES is not set");
    };
    let entries = value.split(|byte| *byte == b',').take(MAX_DEVICES);
    Reading::Value(entries.map(|entry| visible(entry.trim_ascii(), 64)).collect())
}

/// Returns the options of PyTorch's allocator. `PYTORCH_CUDA_ALLOC_CONF` is supported by all PyTorch versions, and
/// takes precedence over `PYTORCH_ALLOC_CONF`.
pub fn alloc_conf(environment: &NulList) -> Option<String> {
    let set = first(environment, &["PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"])?;
    Some(visible(set, MAX_CONF_CHARS))
}

/// Reads a process's allocator options. Returns `None` if they are not set or the environment is not readable.
pub fn alloc_conf_of(proc_root: &Path, pid: Pid) -> Option<String> {
    alloc_conf(&of_process(proc_root, pid)?)
}

/// Returns the settings of JAX's and TensorFlow's pools that are set: `XLA_PYTHON_CLIENT_MEM_FRACTION=.30`.
pub fn pool_conf(environment: &NulList) -> Option<String> {
    let set = POOL_SETTINGS.iter().filter_map(|name| {
        let value = visible(value(environment, name)?, MAX_SETTING_CHARS);
        Some(format!("{name}={}", value.replace(' ', "")))
    });
    let set: Vec<String> = set.collect();
    (!set.is_empty()).then(|| set.join(" "))
}

/// Reads a process's pool settings. Returns `None` if they are not set or the environment is not readable.
pub fn pool_conf_of(proc_root: &Path, pid: Pid) -> Option<String> {
    pool_conf(&of_process(proc_root, pid)?)
}

/// Reads one variable of a process. Returns `None` if it is not set or the environment is not readable.
pub fn setting_of(proc_root: &Path, pid: Pid, name: &str) -> Option<String> {
    Some(visible(value(&of_process(proc_root, pid)?, name)?, MAX_VALUE_CHARS))
}

fn of_process(proc_root: &Path, pid: Pid) -> Option<NulList> {
    let file = File::open(proc_root.join(pid.0.to_string()).join("environ")).ok()?;
    NulList::read(file).ok()
}

/// Returns the Kubernetes pod's name. Kubernetes sets no job ID, but the pod's name starts with the job's name and is
/// the host name in the pod.
pub fn pod(environment: &NulList) -> Option<&[u8]> {
    value(environment, "KUBERNETES_SERVICE_HOST")?;
    first(environment, &["POD_NAME", "HOSTNAME"])
}

fn number(environment: &NulList, names: &[&str], absent: &str) -> Reading<u32> {
    let Some(value) = first(environment, names) else {
        return Reading::missing(Reason::Unsupported, absent);
    };
    std::str::from_utf8(value).ok().and_then(|text| text.trim().parse().ok()).map_or_else(
        || {
            let shown = visible(value, 32);
            Reading::missing(Reason::Implausible, format!("not a number: {shown}"))
        },
        Reading::Value,
    )
}

/// Returns the value of the first environment variable that is set.
pub fn first<'a>(environment: &'a NulList, names: &[&str]) -> Option<&'a [u8]> {
    names.iter().find_map(|name| value(environment, name))
}

/// Returns an environment variable's value. An empty value is treated as unset, as launchers do.
fn value<'a>(environment: &'a NulList, name: &str) -> Option<&'a [u8]> {
    environment.entries().find_map(|entry| {
        let value = entry.strip_prefix(name.as_bytes())?.strip_prefix(b"=")?;
        (!value.is_empty()).then_some(value)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> NulList {
        NulList::from_bytes(text.replace(' ', "\0").into_bytes())
    }

    #[test]
    fn torchrun_takes_precedence_over_slurm() {
        let both = of("SLURM_PROCID=7 RANK=3 LOCAL_RANK=1 SLURM_JOB_ID=81234");
        assert_eq!(rank(&both).get(), Some(3));
        assert_eq!(local_rank(&both).get(), Some(1));
        assert_eq!(job(&both).as_deref(), Some("81234"));
        assert_eq!(rank(&of("SLURM_PROCID=7 XRANK=3 RANK=")).get(), Some(7));
    }

    #[test]
    fn reports_missing_and_invalid_rank() {
        let reason = |text| rank(&of(text)).why().map(|m| m.reason);
        assert_eq!(reason("HOME=/root"), Some(Reason::Unsupported));
        assert_eq!(reason("RANK=-1"), Some(Reason::Implausible));
        assert_eq!(reason("RANK=four"), Some(Reason::Implausible));
    }

    #[test]
    fn cuda_name_of_allocator_options_takes_precedence() {
        let both = of("PYTORCH_ALLOC_CONF=a:1 PYTORCH_CUDA_ALLOC_CONF=b:2");
        assert_eq!(alloc_conf(&both).as_deref(), Some("b:2"));
        let new = of("PYTORCH_CUDA_ALLOC_CONF= PYTORCH_ALLOC_CONF=a:1");
        assert_eq!(alloc_conf(&new).as_deref(), Some("a:1"));
        assert_eq!(alloc_conf(&of("HOME=/root")), None);
    }

    #[test]
    fn returns_pool_settings_that_are_set() {
        let set =
            of("TF_FORCE_GPU_ALLOW_GROWTH=true XLA_PYTHON_CLIENT_MEM_FRACTION=.30 XLA_FLAGS=x");
        let expected = "XLA_PYTHON_CLIENT_MEM_FRACTION=.30 TF_FORCE_GPU_ALLOW_GROWTH=true";
        assert_eq!(pool_conf(&set).as_deref(), Some(expected));
        assert_eq!(pool_conf(&of("XLA_PYTHON_CLIENT_PREALLOCATE=")), None);
    }

    #[test]
    fn returns_pod_name_only_in_kubernetes() {
        assert_eq!(job(&of("HOSTNAME=node17")), None);
        let pod = of("KUBERNETES_SERVICE_HOST=10.0.0.1 HOSTNAME=train-0-x7k2p");
        assert_eq!(job(&pod).as_deref(), Some("train-0-x7k2p"));
        assert_eq!(job(&of("PBS_JOBID=1234.pbs01")).as_deref(), Some("1234.pbs01"));
    }
}
