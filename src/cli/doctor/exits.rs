//! The doctor's lines on what is noticed when a process or a GPU breaks.

use super::{Check, is_root};
use crate::cli::settings::{agent_options, kernel_log_path};
use crate::collect::exits::oom::{self, OomCounterPaths};
use crate::collect::exits::self_test::{ExitSources, probe};
use crate::collect::host::hello;
use crate::collect::kernel_log::{KernelLog, fixes};
use crate::model::host::PidNamespace;
use crate::model::units::Millis;

pub fn check_ends() -> Check {
    let kernel = hello().kernel;
    let kernel = kernel.value().map_or("this kernel", String::as_str);
    let (works, found) = match probe() {
        ExitSources::Status => (
            true,
            format!("seen at once, with exit code and signal, of every user's (Linux {kernel})"),
        ),
        ExitSources::End => (
            true,
            format!(
                "seen at once; exit code and signal only of {} that are not collected at once: Linux {kernel} is older \
                 than 6.15",
                if is_root() { "those" } else { "your own" }
            ),
        ),
        ExitSources::Nothing(why) => (false, format!("seen within 2 s, without exit code: {why}")),
    };
    let fix = match works {
        true => Vec::new(),
        false => vec!["`gputop run COMMAND` knows how its command ended on every kernel".into()],
    };
    Check {
        name: "ends of processes",
        works,
        found,
        fix,
    }
}

pub fn check_oom_killer() -> Check {
    let options = agent_options(Millis(1_000));
    let log = KernelLog::open(&options.kernel_log).map(drop);
    let places = OomCounterPaths {
        proc_root: options.proc_root,
        cgroup_root: options.cgroup_root,
        is_host: hello().namespace == PidNamespace::Host,
    };
    let sources = oom::sources(places, log.clone());
    let (works, found) = match sources.as_slice() {
        [] => (false, "nothing here tells whom it ended".to_owned()),
        sources => (true, format!("told by {}", sources.join(", "))),
    };
    Check {
        name: "out-of-memory killer",
        works,
        found,
        fix: match (works, log) {
            (false, Err(why)) => fixes(&why, is_root()),
            _ => Vec::new(),
        },
    }
}

pub fn check_kernel_log() -> Check {
    let path = kernel_log_path();
    let (works, found, fix) = match KernelLog::open(&path) {
        Ok(_) => (
            true,
            format!("{} is read for Xids and the OOM killer", path.display()),
            Vec::new(),
        ),
        Err(why) => (false, why.to_string(), fixes(&why, is_root())),
    };
    Check {
        name: "kernel log",
        works,
        found,
        fix,
    }
}

/// `supported`: how many of how many GPUs; none when no driver answers.
pub fn check_xids(supported: Option<(usize, u32)>) -> Check {
    let (works, found) = match supported {
        None => (false, "no NVIDIA driver answers".to_owned()),
        Some((0, _)) => (
            false,
            "the driver reports none of these GPUs; the kernel log may tell".to_owned(),
        ),
        Some((some, all)) => (
            true,
            format!("the driver reports those of {some} of {all} GPUs"),
        ),
    };
    Check {
        name: "Xid events",
        works,
        found,
        fix: Vec::new(),
    }
}
