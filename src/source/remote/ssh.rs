//! Runs the system's ssh, which handles user configuration, keys and jump hosts.

use std::path::PathBuf;
use std::process::Command;

use crate::open_files::restore_in;

use super::nvidia_smi::script;

/// An ssh destination: a host and an optional port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ssh {
    /// `host` or `user@host`.
    pub host: String,
    pub port: Option<u16>,
}

/// A connection shared by several ssh calls, so that the user sees each prompt only once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shared {
    /// Path of the control socket (`ControlPath`).
    pub socket: PathBuf,
}

/// Options that make ssh notice within 15 seconds that a host no longer responds, even if packets are dropped.
const KEEPALIVE_OPTIONS: [&str; 3] =
    ["ServerAliveInterval=5", "ServerAliveCountMax=3", "ConnectTimeout=15"];
/// How long an unused shared connection stays open, in seconds.
const PERSIST_OPTION: &str = "ControlPersist=60";

fn ssh() -> Command {
    let mut command = Command::new("ssh");
    restore_in(&mut command);
    command
}

impl Ssh {
    /// Returns an ssh command that may prompt the user on the terminal.
    pub fn asking(&self, shared: Option<&Shared>, remote: &str) -> Command {
        self.command(shared, &[], remote)
    }

    /// Returns an ssh command that fails instead of prompting.
    pub fn silent(&self, shared: Option<&Shared>, remote: &str) -> Command {
        self.command(shared, &["BatchMode=yes"], remote)
    }

    /// Returns a command that closes the shared connection. Needed because ssh may not have noticed that the connection
    /// is dead.
    pub(super) fn hang_up(&self, shared: &Shared) -> Command {
        let mut command = ssh();
        command.args(["-O", "exit", "-o"]);
        command.arg(format!("ControlPath={}", shared.socket.display()));
        self.add_host(&mut command);
        command
    }

    /// Returns a command that prints the ssh configuration for this host.
    pub fn configuration(&self) -> Command {
        let mut command = ssh();
        command.arg("-G");
        self.add_host(&mut command);
        command
    }

    fn command(&self, shared: Option<&Shared>, options: &[&str], remote: &str) -> Command {
        let mut command = ssh();
        // No remote terminal, and no X11 or agent forwarding.
        command.args(["-T", "-x", "-a"]);
        for option in KEEPALIVE_OPTIONS.iter().chain(options) {
            command.args(["-o", option]);
        }
        if let Some(shared) = shared {
            let socket = format!("ControlPath={}", shared.socket.display());
            command.args(["-o", "ControlMaster=auto", "-o", PERSIST_OPTION, "-o", &socket]);
        }
        self.add_host(&mut command);
        command.arg(remote);
        command
    }

    fn add_host(&self, command: &mut Command) {
        if let Some(port) = self.port {
            command.args(["-p", &port.to_string()]);
        }
        command.args(["--", &self.host]);
    }
}

/// Returns the paths where the agent may be on the remote host, starting with the uploaded copy. The paths are passed
/// to `sh` in single quotes.
fn places() -> String {
    let version = env!("CARGO_PKG_VERSION");
    format!(
        "\"$HOME/.cache/gputop/{version}/gputop\" gputop \"$HOME/.local/bin/gputop\" \"$HOME/.cargo/bin/gputop\""
    )
}

/// Returns a command that runs a script with the POSIX shell, regardless of the login shell. The absolute path prevents
/// running some other program named `sh` from the user's PATH. The system directories are searched even if the user's
/// PATH lacks them.
fn in_shell(script: &str) -> String {
    format!("/bin/sh -c 'PATH=\"${{PATH:+$PATH:}}/usr/bin:/bin\"; {script}'")
}

/// Returns shell code that sets `p` to a working gputop on the remote host and runs `then`. Relative PATH entries are
/// ignored, because they depend on the login shell's current directory.
fn with_gputop(then: &str) -> String {
    let places = places();
    format!(
        "for g in {places}; do p=$(command -v \"$g\" 2>/dev/null) && [ -z \"${{p%%/*}}\" ] && \
         \"$p\" --version >/dev/null 2>&1 </dev/null && {then}; done"
    )
}

/// Returns a script that runs the agent, or the `nvidia-smi` loop if gputop is not found. The script exits with 127 if
/// neither exists. Any login shell can pass the script on to `sh`.
pub(super) fn agent(arguments: &str) -> String {
    let agent = with_gputop(&format!("exec \"$p\" agent{arguments}"));
    let nvidia_smi = nvidia_smi_loop();
    in_shell(&format!("{agent}; {nvidia_smi}"))
}

/// Returns a script that runs the `nvidia-smi` loop even if gputop is installed.
pub(super) fn nvidia_smi() -> String {
    in_shell(&nvidia_smi_loop())
}

fn nvidia_smi_loop() -> String {
    let (found, script) = (script::found(), script::script());
    format!(
        "{found} || {{ echo \"neither gputop nor nvidia-smi was found on that host\" >&2; exit 127; }}; {script}"
    )
}

/// Returns a script that reports what is installed: `gputop-on Linux x86_64`, `gputop-smi-at PATH`, and, if gputop is
/// found, `gputop-at PATH` with its greeting.
pub fn look() -> String {
    let found = script::found();
    let greeting = "\"$p\" agent </dev/null 2>/dev/null | head -n 1";
    let agent = with_gputop(&format!("echo \"gputop-at $p\" && {greeting} && exit 0"));
    in_shell(&format!(
        "echo \"gputop-on $(uname -sm)\"; {{ {found}; }} && echo \"gputop-smi-at $s\"; {agent}; exit 0"
    ))
}

/// Returns a script that reads a program from stdin and installs it at the agent's first search path. The script fails
/// unless the copy is complete, runs on the remote host, and is this version of gputop. `cksum` is the output of
/// cksum(1) for the program; every POSIX system has this command.
///
/// The copy and its directories are owned by the user and private (0700), regardless of the login shell's umask. The
/// copy is written under a temporary name and then renamed, so an incomplete copy is never used.
pub fn install(cksum: &str) -> String {
    let version = env!("CARGO_PKG_VERSION");
    // Use one line without single quotes, backslashes and exclamation marks, because csh and fish must pass it on
    // unchanged.
    format!(
        "/bin/sh -c 'PATH=/usr/bin:/bin:/usr/local/bin:/run/current-system/sw/bin; umask 077; n=; \
         fail() {{ [ -z \"$n\" ] || rm -f \"$n\"; [ -z \"$1\" ] || echo \"$1\" >&2; exit 1; }}; \
         [ \"$HOME\" ] && [ -z \"${{HOME%%/*}}\" ] || fail \"HOME is not set on that host, so there is no directory for gputop\"; \
         c=\"$HOME/.cache/gputop\"; d=\"$c/{version}\"; mkdir -p \"$d\" || fail; \
         for f in \"$c\" \"$d\"; do [ -O \"$f\" ] && chmod 700 \"$f\" || fail \"$f belongs to another user\"; done; \
         if [ -L \"$d/gputop\" ]; then rm -f \"$d/gputop\"; fi; \
         if [ -d \"$d/gputop\" ]; then fail \"$d/gputop is a directory; remove it\"; fi; \
         n=\"$d/.new.$$\"; rm -f \"$n\"; set -C; cat > \"$n\" || fail; set +C; \
         set -- $(cksum < \"$n\"); [ \"$1 $2\" = \"{cksum}\" ] || fail \"the copy is damaged or incomplete\"; \
         chmod 700 \"$n\" && v=$(\"$n\" --version) || fail; \
         [ \"$v\" = \"gputop {version}\" ] || fail \"that program is not gputop {version}\"; \
         mv -f \"$n\" \"$d/gputop\" || fail'"
    )
}
