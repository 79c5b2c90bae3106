//! The doctor's lines on what gputop itself needs: leave to read allocators, a place for incidents and for the hook, ssh.

use std::path::Path;
use std::process::Command;

use super::Check;
use crate::collect::hook;
use crate::collect::memory::access;
use crate::incidents::Store;
use crate::open_files::{Limit, limit};

pub fn check_allocators() -> Check {
    let (works, found) = match access::readable_scope(Path::new("/proc")) {
        Ok(whose) => (true, format!("can be read: {whose}")),
        Err(why) => (false, why.to_owned()),
    };
    Check {
        name: "allocators of processes",
        works,
        found,
        fix: Vec::new(),
    }
}

pub fn check_hook() -> Check {
    let (works, found) = match hook::install() {
        Ok(path) => (
            true,
            hook_words(&path, access::ptrace_scope(Path::new("/proc"))),
        ),
        Err(error) => (
            false,
            format!("cannot be laid out below the cache or the state directory: {error}"),
        ),
    };
    Check {
        name: "hook for Python",
        works,
        found,
        fix: match works {
            true => Vec::new(),
            false => vec!["export XDG_CACHE_HOME=DIRECTORY    (one of your own)".into()],
        },
    }
}

fn hook_words(path: &Path, ptrace_scope: Option<u32>) -> String {
    let path = path.display();
    match ptrace_scope {
        Some(1) => format!(
            "installed in {path}; programs that load it can be read and traced by your other processes \
             (GPUTOP_HOOK_PTRACER=0 prevents it, GPUTOP_HOOK_PTRACER=PID names one)"
        ),
        _ => format!("installed in {path}"),
    }
}

pub fn check_store() -> Check {
    let listed = Store::of_this_user().and_then(|store| {
        let listing = store.list()?;
        let folder = store.folder().display().to_string();
        Ok((listing.entries.len(), folder))
    });
    let (works, found) = match listed {
        Ok((count, folder)) => (true, format!("{count} kept in {folder}")),
        Err(error) => (false, error.to_string()),
    };
    Check {
        name: "incidents",
        works,
        found,
        fix: Vec::new(),
    }
}

/// Fewer leave no room for a machine with a hundred processes and their logs.
const MIN_OPEN_FILES: u64 = 1_024;

pub fn check_open_files() -> Check {
    let Limit { original, now } = limit();
    let raised = match original < now {
        true => format!(", raised from {original} (children keep {original})"),
        false => String::new(),
    };
    let works = now >= MIN_OPEN_FILES;
    let effect = match works {
        true => "",
        false => {
            ". Where it is used up, exits are noticed up to 2 s late and some logs are not followed"
        }
    };
    Check {
        name: "open files",
        works,
        found: format!("limit {now}{raised}{effect}"),
        fix: match works {
            true => Vec::new(),
            false => vec!["ulimit -Hn 65536    (as root, before gputop is started)".into()],
        },
    }
}

pub fn check_ssh() -> Check {
    let (works, found) = match Command::new("ssh").arg("-V").output() {
        Ok(output) => {
            let version = String::from_utf8_lossy(&output.stderr);
            let version = version.split(',').next().unwrap_or_default().trim();
            (true, format!("over {version}"))
        }
        Err(_) => (
            false,
            "ssh is not installed: `via:COMMAND` works without it".into(),
        ),
    };
    Check {
        name: "far hosts",
        works,
        found,
        fix: match works {
            true => Vec::new(),
            false => vec!["sudo apt install openssh-client".into()],
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_that_the_hook_permits_tracing_where_yama_would_deny_it() {
        let words = |scope| hook_words(Path::new("/hook"), scope);
        assert!(words(Some(1)).contains("read and traced by your other processes"));
        for scope in [None, Some(0), Some(2)] {
            assert_eq!(words(scope), "installed in /hook");
        }
    }
}
