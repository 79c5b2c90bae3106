//! Reasons why gputop cannot read another process's memory, and the fix for this user.
//!
//! The kernel requires that reader and target belong to the same user, and that the target has not made itself
//! unreadable. With Yama (Ubuntu, Debian), `/proc/sys/kernel/yama/ptrace_scope` adds a condition for the reader. With
//! 0, there is no further condition. With 1 (the default of these distributions), the reader must be an ancestor of the
//! target, or the process that the target named with `PR_SET_PTRACER`. With 2, the reader must have CAP_SYS_PTRACE.
//! With 3, all reads are denied until the next boot. CAP_SYS_PTRACE overrides all these conditions except 3, but root
//! in a container rarely has this capability.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use gputop_model::units::Pid;
use nix::unistd::geteuid;

/// Bit number of CAP_SYS_PTRACE in the effective capabilities.
const CAP_SYS_PTRACE: u32 = 19;

/// Facts that determine whether the kernel allows reading a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Situation {
    own_user: u32,
    /// Owner of `/proc/PID`, which is root for a process that made itself unreadable.
    target_user: Option<u32>,
    ptrace_scope: Option<u32>,
    has_capability: bool,
}

/// Returns why a process cannot be read and how to fix this, as a phrase without a final period. The user can copy the
/// commands in the phrase.
pub fn hint(proc_root: &Path, pid: Pid) -> String {
    let directory = proc_root.join(pid.to_string());
    let owner = fs::metadata(directory).ok().map(|dir| dir.uid());
    explanation(situation(proc_root, owner)).to_owned()
}

fn situation(proc_root: &Path, target_user: Option<u32>) -> Situation {
    let status = fs::read_to_string(proc_root.join("self/status")).unwrap_or_default();
    Situation {
        own_user: geteuid().as_raw(),
        target_user,
        ptrace_scope: ptrace_scope(proc_root),
        has_capability: effective(&status) >> CAP_SYS_PTRACE & 1 == 1,
    }
}

/// Reads Yama's `ptrace_scope`. Returns `None` on a kernel without Yama.
pub fn ptrace_scope(proc_root: &Path) -> Option<u32> {
    fs::read_to_string(proc_root.join("sys/kernel/yama/ptrace_scope")).ok()?.trim().parse().ok()
}

/// Returns a phrase that describes which processes this user can generally read. If there are none, the error is a
/// phrase like those from [`hint`].
pub fn readable_scope(proc_root: &Path) -> Result<&'static str, &'static str> {
    let own_user = geteuid().as_raw();
    let situation = situation(proc_root, Some(own_user));
    match (situation.ptrace_scope, situation.has_capability) {
        (Some(1..), false) | (Some(3), _) => Err(explanation(situation)),
        (_, true) => Ok("processes of every user, unless a container policy denies it"),
        (_, false) if own_user == 0 => Err(explanation(situation)),
        (_, false) => Ok("your own processes; other users' processes with sudo"),
    }
}

fn effective(status: &str) -> u64 {
    status
        .lines()
        .find_map(|line| line.strip_prefix("CapEff:"))
        .and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .unwrap_or_default()
}

fn explanation(situation: Situation) -> &'static str {
    let is_own = situation.target_user == Some(situation.own_user);
    match situation.ptrace_scope {
        Some(3) => {
            "kernel.yama.ptrace_scope is 3: no process can read another process's memory until the next boot"
        }
        _ if situation.has_capability => {
            "a security policy (seccomp, AppArmor, SELinux) denies access to the process's memory: run gputop where this policy does not apply"
        }
        _ if situation.own_user == 0 => {
            "root lacks CAP_SYS_PTRACE: start the container with --cap-add SYS_PTRACE, or run gputop on the host"
        }
        Some(2) => {
            "kernel.yama.ptrace_scope is 2: only root can read another process. Run sudo gputop"
        }
        _ if !is_own => {
            "the process belongs to another user or made itself unreadable: run gputop as its user, or run sudo gputop"
        }
        Some(1) => {
            "kernel.yama.ptrace_scope is 1: start the program with gputop run, or run sudo gputop, or allow it for all \
             programs with sudo sysctl kernel.yama.ptrace_scope=0"
        }
        _ => {
            "the process made itself unreadable, or a container policy denies reading it: run sudo gputop"
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readable_scope_depends_on_ptrace_scope_and_capabilities() {
        let root = tempfile::tempdir().expect("a folder");
        let scope_of = |scope: &str, capabilities: &str| {
            let at = |path: &str, text: &str| {
                let path = root.path().join(path);
                fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
                fs::write(path, text).expect("a file");
            };
            at("sys/kernel/yama/ptrace_scope", scope);
            at("self/status", &format!("Name:\tx\nCapEff:\t{capabilities}\n"));
            readable_scope(root.path())
        };
        let (all, none) = ("000001ffffffffff", "0000000000000000");
        assert!(scope_of("3\n", all).is_err_and(|why| why.contains("until the next boot")));
        assert!(
            scope_of("1\n", all).is_ok_and(|scope| scope.starts_with("processes of every user"))
        );
        assert!(scope_of("2\n", none).is_err());
        assert!(scope_of("1\n", none).is_err());
        assert_eq!(scope_of("0\n", none).is_ok(), !geteuid().is_root());
    }

    #[test]
    fn explains_each_situation_with_its_fix() {
        let situation = |own_user, target_user, ptrace_scope, has_capability| Situation {
            own_user,
            target_user: Some(target_user),
            ptrace_scope,
            has_capability,
        };
        let table = [
            (situation(1000, 1000, Some(1), false), "gputop run"),
            (situation(1000, 1000, Some(0), false), "made itself unreadable"),
            (situation(1000, 1000, None, false), "made itself unreadable"),
            (situation(1000, 1000, Some(2), false), "sudo gputop"),
            (situation(1000, 1000, Some(3), false), "next boot"),
            (situation(1000, 1001, Some(1), false), "as its user"),
            (situation(1000, 0, None, false), "as its user"),
            (situation(0, 1000, Some(1), false), "--cap-add SYS_PTRACE"),
            (situation(0, 1000, Some(1), true), "security policy"),
        ];
        for (situation, expected) in table {
            let text = explanation(situation);
            assert!(text.contains(expected), "{situation:?}: {text}");
            assert!(!text.ends_with('.'));
        }
    }

    #[test]
    fn reads_effective_capabilities_from_status() {
        assert_eq!(effective("Name:\tx\nCapEff:\t0000000000080000\n"), 1 << 19);
        assert_eq!(effective("Name:\tx\n"), 0);
    }
}
