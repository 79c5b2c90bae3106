//! What the launchers of jobs leave in a process's environment: its rank, its local rank, the job it belongs to.
//!
//! Only these few variables are looked at here; the environment as a whole is shown on request alone and under the
//! privacy rule (`redact/`).

use std::fs::File;
use std::path::Path;

use super::nul_list::List;
use crate::model::reading::{Reading, Reason};
use crate::model::text::visible;
use crate::model::units::Pid;

/// A job id is a number or a short name; the bound is for one that lies.
const MAX_JOB_CHARS: usize = 64;
/// All options of one version, each with a value, are half of it.
const MAX_CONF_CHARS: usize = 1024;

/// In the order in which they are believed.
const RANK: &[&str] = &["RANK", "SLURM_PROCID"];
const LOCAL_RANK: &[&str] = &["LOCAL_RANK", "SLURM_LOCALID"];
/// Slurm, PBS and Torque, LSF. Grid Engine's JOB_ID is too common a name to be believed.
const JOB: &[&str] = &["SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID"];

pub fn rank(environment: &List) -> Reading<u32> {
    number(
        environment,
        RANK,
        "no RANK or SLURM_PROCID in its environment",
    )
}

pub fn local_rank(environment: &List) -> Reading<u32> {
    number(
        environment,
        LOCAL_RANK,
        "no LOCAL_RANK or SLURM_LOCALID in its environment",
    )
}

pub fn job(environment: &List) -> Option<String> {
    first(environment, JOB)
        .or_else(|| pod(environment))
        .map(|id| visible(id, MAX_JOB_CHARS))
}

/// The entries of CUDA_VISIBLE_DEVICES. Set to nothing it hides every GPU, which is not the same as unset.
pub fn visible_devices(environment: &List) -> Reading<Vec<String>> {
    const MAX_DEVICES: usize = 64;
    let set = environment
        .entries()
        .find_map(|entry| entry.strip_prefix(b"CUDA_VISIBLE_DEVICES="));
    let Some(value) = set else {
        return Reading::missing(Reason::Unsupported, "CUDA_VISIBLE_DEVICES is not set");
    };
    let entries = value.split(|byte| *byte == b',').take(MAX_DEVICES);
    Reading::Value(
        entries
            .map(|entry| visible(entry.trim_ascii(), 64))
            .collect(),
    )
}

/// The options of PyTorch's allocator. The name with CUDA in it is the one that all versions know, and the one that is
/// read first where both are set.
pub fn alloc_conf(environment: &List) -> Option<String> {
    let set = first(
        environment,
        &["PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"],
    )?;
    Some(visible(set, MAX_CONF_CHARS))
}

/// The same of one process; `None` also where its environment may not be read.
pub fn alloc_conf_of(proc_root: &Path, pid: Pid) -> Option<String> {
    let file = File::open(proc_root.join(pid.0.to_string()).join("environ")).ok()?;
    alloc_conf(&List::read(file).ok()?)
}

/// Kubernetes gives a pod no job id, but its name begins with the job's, and is the host name inside.
pub fn pod(environment: &List) -> Option<&[u8]> {
    value(environment, "KUBERNETES_SERVICE_HOST")?;
    first(environment, &["POD_NAME", "HOSTNAME"])
}

fn number(environment: &List, names: &[&str], absent: &str) -> Reading<u32> {
    let Some(value) = first(environment, names) else {
        return Reading::missing(Reason::Unsupported, absent);
    };
    std::str::from_utf8(value)
        .ok()
        .and_then(|text| text.trim().parse().ok())
        .map_or_else(
            || {
                let shown = visible(value, 32);
                Reading::missing(Reason::Implausible, format!("not a number: {shown}"))
            },
            Reading::Value,
        )
}

pub fn first<'a>(environment: &'a List, names: &[&str]) -> Option<&'a [u8]> {
    names.iter().find_map(|name| value(environment, name))
}

/// The value of a variable; an empty one counts as unset, as launchers use it.
fn value<'a>(environment: &'a List, name: &str) -> Option<&'a [u8]> {
    environment.entries().find_map(|entry| {
        let value = entry.strip_prefix(name.as_bytes())?.strip_prefix(b"=")?;
        (!value.is_empty()).then_some(value)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> List {
        List::from_bytes(text.replace(' ', "\0").into_bytes())
    }

    #[test]
    fn torchrun_is_believed_before_slurm() {
        let both = of("SLURM_PROCID=7 RANK=3 LOCAL_RANK=1 SLURM_JOB_ID=81234");
        assert_eq!(rank(&both).get(), Some(3));
        assert_eq!(local_rank(&both).get(), Some(1));
        assert_eq!(job(&both).as_deref(), Some("81234"));
        assert_eq!(rank(&of("SLURM_PROCID=7 XRANK=3 RANK=")).get(), Some(7));
    }

    #[test]
    fn an_absent_or_foolish_rank_says_so() {
        let reason = |text| rank(&of(text)).why().map(|m| m.reason);
        assert_eq!(reason("HOME=/root"), Some(Reason::Unsupported));
        assert_eq!(reason("RANK=-1"), Some(Reason::Implausible));
        assert_eq!(reason("RANK=four"), Some(Reason::Implausible));
    }

    #[test]
    fn the_cuda_name_of_the_allocators_options_is_believed_first() {
        let both = of("PYTORCH_ALLOC_CONF=a:1 PYTORCH_CUDA_ALLOC_CONF=b:2");
        assert_eq!(alloc_conf(&both).as_deref(), Some("b:2"));
        let new = of("PYTORCH_CUDA_ALLOC_CONF= PYTORCH_ALLOC_CONF=a:1");
        assert_eq!(alloc_conf(&new).as_deref(), Some("a:1"));
        assert_eq!(alloc_conf(&of("HOME=/root")), None);
    }

    #[test]
    fn a_pod_is_named_only_inside_kubernetes() {
        assert_eq!(job(&of("HOSTNAME=node17")), None);
        let pod = of("KUBERNETES_SERVICE_HOST=10.0.0.1 HOSTNAME=train-0-x7k2p");
        assert_eq!(job(&pod).as_deref(), Some("train-0-x7k2p"));
        assert_eq!(
            job(&of("PBS_JOBID=1234.pbs01")).as_deref(),
            Some("1234.pbs01")
        );
    }
}
