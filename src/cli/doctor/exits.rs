//! Checks of the sources that report process exits, OOM kills and Xid events.

use gputop_model::{Millis, PidNamespace};

use crate::cli::doctor::check::{Check, is_root};
use crate::cli::settings::{agent_options, kernel_log_path};
use crate::collect::exits::oom::{self, OomCounterPaths};
use crate::collect::exits::self_test::{ExitSources, probe};
use crate::collect::host::hello;
use crate::collect::kernel_log::{KernelLog, fixes};

pub fn check_exits() -> Check {
    let kernel = hello().kernel;
    let kernel = kernel.value().map_or("this kernel", String::as_str);
    let (works, found) = match probe() {
        ExitSources::Status => (
            true,
            format!(
                "detected immediately for all users, with exit code and signal (Linux {kernel})"
            ),
        ),
        ExitSources::End => (
            true,
            format!(
                "detected immediately; exit code and signal only for {}processes that their parent has not reaped yet, \
                 because Linux {kernel} is older than 6.15",
                if is_root() { "" } else { "your " }
            ),
        ),
        ExitSources::Nothing(why) => {
            (false, format!("detected within 2 s, but without an exit code: {why}"))
        }
    };
    let fix = if works {
        ""
    } else {
        "gputop run COMMAND    (reports the exit code on any Linux kernel)"
    };
    Check::new("process exits", works, found, fix)
}

pub fn check_oom_killer() -> Check {
    let options = agent_options(Millis(1_000));
    let log = KernelLog::open(&options.kernel_log).map(drop);
    let paths = OomCounterPaths {
        proc_root: options.proc_root,
        cgroup_root: options.cgroup_root,
        is_host: hello().namespace == PidNamespace::Host,
    };
    let sources = oom::sources(paths, log.clone());
    let (works, found) = match sources.as_slice() {
        [] => (false, "OOM-kill victims cannot be identified on this system".to_owned()),
        sources => (true, format!("identifies victims from {}", sources.join(", "))),
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
        Ok(_) => (true, format!("reads {} for Xids and OOM kills", path.display()), Vec::new()),
        Err(why) => (false, why.to_string(), fixes(&why, is_root())),
    };
    Check { name: "kernel log", works, found, fix }
}

/// Checks whether the driver reports Xid events. `supported` contains the number of GPUs for which it does, and the
/// total number of GPUs.
pub fn check_xids(supported: Option<(usize, u32)>) -> Check {
    let (works, found) = match supported {
        None => (false, "requires the NVIDIA driver".to_owned()),
        Some((0, _)) => (
            false,
            "not reported by the driver for these GPUs; the kernel log may contain them".to_owned(),
        ),
        Some((some, all)) => (true, format!("reported by the driver for {some} of {all} GPUs")),
    };
    Check::new("Xid events", works, found, "")
}
