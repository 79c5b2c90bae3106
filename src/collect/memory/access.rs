//! Why one process may not read the memory of another, and the way out that this user has.
//!
//! The kernel asks for the same user, for a target that did not make itself unreadable, and where Yama is built in
//! (Ubuntu, Debian) for what `/proc/sys/kernel/yama/ptrace_scope` says: 0 nothing more, 1 (the default there) only
//! an ancestor or whom the target named by `PR_SET_PTRACER`, 2 only CAP_SYS_PTRACE, 3 nobody until the next boot.
//! CAP_SYS_PTRACE stands above all but 3, but root inside a container seldom has it.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use nix::unistd::geteuid;

use crate::model::units::Pid;

/// Bit 19 of the effective capabilities.
const CAP_SYS_PTRACE: u32 = 19;

/// What the kernel's decision hangs on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Situation {
    own_user: u32,
    /// The owner of `/proc/PID`, which is root for a process that made itself unreadable.
    target_user: Option<u32>,
    ptrace_scope: Option<u32>,
    has_capability: bool,
}

/// A clause without a final period; the commands in it can be typed as they are.
pub fn hint(proc_root: &Path, pid: Pid) -> String {
    let directory = proc_root.join(pid.to_string());
    let owner = fs::metadata(directory).ok().map(|dir| dir.uid());
    words(situation(proc_root, owner)).to_owned()
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

/// Reads Yama's rule; `None` for a kernel without it.
pub fn ptrace_scope(proc_root: &Path) -> Option<u32> {
    let scope = fs::read_to_string(proc_root.join("sys/kernel/yama/ptrace_scope"));
    scope.ok()?.trim().parse().ok()
}

/// Whose memory may be read here, before anybody in particular is looked at: a clause, or why nobody's and what helps.
///
/// # Errors
/// With a clause as of [`hint`].
pub fn outlook(proc_root: &Path) -> Result<&'static str, &'static str> {
    let own_user = geteuid().as_raw();
    let situation = situation(proc_root, Some(own_user));
    match (situation.ptrace_scope, situation.has_capability) {
        (Some(1..), false) | (Some(3), _) => Err(words(situation)),
        (_, true) => Ok("every user's, unless a container's policy forbids it"),
        (_, false) if own_user == 0 => Err(words(situation)),
        (_, false) => Ok("your own; those of others with sudo"),
    }
}

fn effective(status: &str) -> u64 {
    status
        .lines()
        .find_map(|line| line.strip_prefix("CapEff:"))
        .and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .unwrap_or_default()
}

fn words(situation: Situation) -> &'static str {
    let is_own = situation.target_user == Some(situation.own_user);
    match situation.ptrace_scope {
        Some(3) => {
            "kernel.yama.ptrace_scope is 3: nobody may read another process until the next boot"
        }
        _ if situation.has_capability => {
            "a security policy (seccomp, AppArmor, SELinux) forbids to read its memory: run gputop outside of it"
        }
        _ if situation.own_user == 0 => {
            "root without CAP_SYS_PTRACE here: start the container with --cap-add SYS_PTRACE, or run gputop on the host"
        }
        Some(2) => "kernel.yama.ptrace_scope is 2: only root may read another process, sudo gputop",
        _ if !is_own => {
            "another user's process, or one that made itself unreadable: run gputop as its user, or sudo gputop"
        }
        Some(1) => {
            "kernel.yama.ptrace_scope is 1: start the program with gputop run, or sudo gputop, or for all programs \
             sudo sysctl kernel.yama.ptrace_scope=0"
        }
        _ => "the process made itself unreadable, or a container's policy forbids it: sudo gputop",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_outlook_is_that_of_the_system_and_of_the_user() {
        let root = tempfile::tempdir().expect("a folder");
        let look = |scope: &str, capabilities: &str| {
            let at = |path: &str, text: &str| {
                let path = root.path().join(path);
                fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
                fs::write(path, text).expect("a file");
            };
            at("sys/kernel/yama/ptrace_scope", scope);
            at(
                "self/status",
                &format!("Name:\tx\nCapEff:\t{capabilities}\n"),
            );
            outlook(root.path())
        };
        let (all, none) = ("000001ffffffffff", "0000000000000000");
        assert!(look("3\n", all).is_err_and(|why| why.contains("until the next boot")));
        assert!(look("1\n", all).is_ok_and(|whose| whose.starts_with("every user's")));
        assert!(look("2\n", none).is_err());
        assert!(look("1\n", none).is_err());
        assert_eq!(look("0\n", none).is_ok(), !geteuid().is_root());
    }

    #[test]
    fn every_situation_has_its_own_way_out() {
        let situation = |own_user, target_user, ptrace_scope, has_capability| Situation {
            own_user,
            target_user: Some(target_user),
            ptrace_scope,
            has_capability,
        };
        let table = [
            (situation(1000, 1000, Some(1), false), "gputop run"),
            (
                situation(1000, 1000, Some(0), false),
                "made itself unreadable",
            ),
            (situation(1000, 1000, None, false), "made itself unreadable"),
            (situation(1000, 1000, Some(2), false), "sudo gputop"),
            (situation(1000, 1000, Some(3), false), "next boot"),
            (situation(1000, 1001, Some(1), false), "as its user"),
            (situation(1000, 0, None, false), "as its user"),
            (situation(0, 1000, Some(1), false), "--cap-add SYS_PTRACE"),
            (situation(0, 1000, Some(1), true), "security policy"),
        ];
        for (situation, expected) in table {
            let words = words(situation);
            assert!(words.contains(expected), "{situation:?}: {words}");
            assert!(!words.ends_with('.'));
        }
    }

    #[test]
    fn the_effective_capabilities_are_read_from_status() {
        assert_eq!(effective("Name:\tx\nCapEff:\t0000000000080000\n"), 1 << 19);
        assert_eq!(effective("Name:\tx\n"), 0);
    }
}
