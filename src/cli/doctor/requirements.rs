//! Checks of gputop's own requirements: permission to read allocators, directories for incidents and the hook, ssh.

use std::io;
use std::path::Path;
use std::process::{Command, Output};

use gputop_peek::memory::access;

use crate::cli::doctor::check::Check;
use crate::collect::hook;
use crate::incident::Store;
use crate::open_files::{Limit, limit};
use gputop_model::text::visible;

pub fn check_allocators() -> Check {
    let (works, found) = match access::readable_scope(Path::new("/proc")) {
        Ok(scope) => (true, format!("readable: {scope}")),
        Err(why) => (false, why.to_owned()),
    };
    Check::new("process allocators", works, found, "")
}

pub fn check_hook() -> Check {
    let (works, found) = match hook::install() {
        Ok(path) => (true, hook_text(&path, access::ptrace_scope(Path::new("/proc")))),
        Err(error) => {
            (false, format!("cannot be installed in the cache or state directory: {error}"))
        }
    };
    let fix =
        if works { "" } else { "export XDG_CACHE_HOME=DIRECTORY    (a directory that you own)" };
    Check::new("Python hook", works, found, fix)
}

fn hook_text(path: &Path, ptrace_scope: Option<u32>) -> String {
    let path = path.display();
    match ptrace_scope {
        Some(1) => format!(
            "installed in {path}; programs that load it can be read and traced by your other processes \
             (GPUTOP_HOOK_PTRACER=0 prevents this, GPUTOP_HOOK_PTRACER=PID allows one process)"
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
        Ok((count, folder)) => (true, format!("{count} saved in {folder}")),
        Err(error) => (false, error.to_string()),
    };
    Check::new("incidents", works, found, "")
}

/// Limit on open files that is sufficient for a host with 100 processes and their logs. A lower limit fails the check.
const MIN_OPEN_FILES: u64 = 1_024;

pub fn check_open_files() -> Check {
    let Limit { original, now } = limit();
    let raised = if original < now {
        format!(", raised from {original} (child processes keep {original})")
    } else {
        String::new()
    };
    let works = now >= MIN_OPEN_FILES;
    let effect = if works {
        ""
    } else {
        ". At the limit, exits are detected up to 2 s late and some logs are not followed"
    };
    let fix = if works { "" } else { "ulimit -Hn 65536    (as root, before starting gputop)" };
    Check::new("open files", works, format!("limit {now}{raised}{effect}"), fix)
}

pub fn check_ssh() -> Check {
    ssh_result(Command::new("ssh").arg("-V").output())
}

fn ssh_result(output: io::Result<Output>) -> Check {
    let name = "remote hosts";
    let Ok(output) = output else {
        let found = "ssh is not installed; without it, only `via:COMMAND` works";
        return Check::new(name, false, found.to_owned(), "sudo apt install openssh-client");
    };
    let text = String::from_utf8_lossy(&output.stderr);
    if !output.status.success() {
        let why = visible(text.lines().next().unwrap_or_default().trim().as_bytes(), 200);
        let found = format!("ssh does not work: {why}; without it, only `via:COMMAND` works");
        return Check::new(name, false, found, "");
    }
    let version = visible(text.split(',').next().unwrap_or_default().trim().as_bytes(), 200);
    Check::new(name, true, format!("{version} is installed"), "")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ssh_that_fails_does_not_work() {
        use std::os::unix::process::ExitStatusExt;
        let output = |code: i32, text: &str| {
            let status = std::process::ExitStatus::from_raw(code << 8);
            ssh_result(Ok(Output { status, stdout: Vec::new(), stderr: text.into() }))
        };
        let works = output(0, "OpenSSH_9.6p1 Ubuntu, OpenSSL 3.0.13\n");
        assert_eq!((works.works, &*works.found), (true, "OpenSSH_9.6p1 Ubuntu is installed"));
        let fails = output(255, "No user exists for uid 54321\n");
        assert!(!fails.works && fails.found.contains("No user exists for uid 54321"));
    }

    #[test]
    fn reports_that_the_hook_permits_tracing_where_yama_would_deny_it() {
        let text = |scope| hook_text(Path::new("/hook"), scope);
        assert!(text(Some(1)).contains("read and traced by your other processes"));
        for scope in [None, Some(0), Some(2)] {
            assert_eq!(text(scope), "installed in /hook");
        }
    }
}
