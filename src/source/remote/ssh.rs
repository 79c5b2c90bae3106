//! The system's ssh, as it is called: the user's configuration, keys and jumps are ssh's own business.

use std::path::PathBuf;
use std::process::Command;

use crate::open_files::restore_in;

use super::nvidia_smi;

/// A host as ssh takes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ssh {
    /// `host` or `user@host`.
    pub host: String,
    pub port: Option<u16>,
}

/// A connection that several calls of ssh share, so that whoever has to answer a question answers it once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shared {
    /// ssh's ControlPath.
    pub socket: PathBuf,
}

/// A far side that answers no more is noticed within a quarter of a minute, also where packets vanish.
const ALIVE: [&str; 3] = [
    "ServerAliveInterval=5",
    "ServerAliveCountMax=3",
    "ConnectTimeout=15",
];
/// How long the shared connection stays behind the last that used it.
const PERSIST: &str = "ControlPersist=60";

fn ssh() -> Command {
    let mut command = Command::new("ssh");
    restore_in(&mut command);
    command
}

impl Ssh {
    /// For a person in front of a terminal: ssh asks what it has to ask.
    pub fn asking(&self, shared: Option<&Shared>, remote: &str) -> Command {
        self.command(shared, &[], remote)
    }

    /// Behind a screen: what would have to be asked fails instead.
    pub fn silent(&self, shared: Option<&Shared>, remote: &str) -> Command {
        self.command(shared, &["BatchMode=yes"], remote)
    }

    /// Ends the connection that is shared, which may not know that it is dead.
    pub(super) fn hang_up(&self, shared: &Shared) -> Command {
        let mut command = ssh();
        command.args(["-O", "exit", "-o"]);
        command.arg(format!("ControlPath={}", shared.socket.display()));
        self.end(&mut command);
        command
    }

    /// What ssh would do for this host, by its configuration.
    pub fn configuration(&self) -> Command {
        let mut command = ssh();
        command.arg("-G");
        self.end(&mut command);
        command
    }

    fn command(&self, shared: Option<&Shared>, options: &[&str], remote: &str) -> Command {
        let mut command = ssh();
        // No terminal there, nothing of this host's screen or keys.
        command.args(["-T", "-x", "-a"]);
        for option in ALIVE.iter().chain(options) {
            command.args(["-o", option]);
        }
        if let Some(shared) = shared {
            let socket = format!("ControlPath={}", shared.socket.display());
            command.args(["-o", "ControlMaster=auto", "-o", PERSIST, "-o", &socket]);
        }
        self.end(&mut command);
        command.arg(remote);
        command
    }

    fn end(&self, command: &mut Command) {
        if let Some(port) = self.port {
            command.args(["-p", &port.to_string()]);
        }
        command.args(["--", &self.host]);
    }
}

/// Where an agent may be there, the one that was copied there first. For `sh`, between single quotes.
fn places() -> String {
    let version = env!("CARGO_PKG_VERSION");
    format!(
        "\"$HOME/.cache/gputop/{version}/gputop\" gputop \"$HOME/.local/bin/gputop\" \"$HOME/.cargo/bin/gputop\""
    )
}

/// Has the POSIX shell run a script, whatever the login shell is. The absolute path keeps a file named `sh` on the user's
/// PATH out of it, and the system's directories are searched even if that PATH lacks them.
fn in_shell(script: &str) -> String {
    format!("/bin/sh -c 'PATH=\"${{PATH:+$PATH:}}/usr/bin:/bin\"; {script}'")
}

/// Sets `p` to a gputop there that runs, and does then what follows. A relative entry of PATH names no program: what it
/// finds depends on the directory that the login shell happens to be in.
fn with_gputop(then: &str) -> String {
    let places = places();
    format!(
        "for g in {places}; do p=$(command -v \"$g\" 2>/dev/null) && [ -z \"${{p%%/*}}\" ] && \
         \"$p\" --version >/dev/null 2>&1 </dev/null && {then}; done"
    )
}

/// Becomes the agent, or without one what [`reduced`] runs; 127 where there is neither. Whatever shell it is that gets this,
/// `sh` runs it.
pub(super) fn agent(arguments: &str) -> String {
    let agent = with_gputop(&format!("exec \"$p\" agent{arguments}"));
    let nvidia_smi = nvidia_smi_loop();
    in_shell(&format!("{agent}; {nvidia_smi}"))
}

/// The same, whatever gputop there is.
pub(super) fn nvidia_smi() -> String {
    in_shell(&nvidia_smi_loop())
}

fn nvidia_smi_loop() -> String {
    let (found, script) = (nvidia_smi::found(), nvidia_smi::script());
    format!(
        "{found} || {{ echo \"there is neither gputop nor nvidia-smi on that host\" >&2; exit 127; }}; {script}"
    )
}

/// Says what there is: `gputop-on Linux x86_64`, `gputop-smi-at PATH`, and of a gputop `gputop-at PATH` with its greeting.
pub fn look() -> String {
    let found = nvidia_smi::found();
    let greeting = "\"$p\" agent </dev/null 2>/dev/null | head -n 1";
    let agent = with_gputop(&format!("echo \"gputop-at $p\" && {greeting} && exit 0"));
    in_shell(&format!(
        "echo \"gputop-on $(uname -sm)\"; {{ {found}; }} && echo \"gputop-smi-at $s\"; {agent}; exit 0"
    ))
}

/// Takes a program from its input and puts it where the agent is looked for first, if it arrived whole, runs there and is
/// a gputop of this version. `cksum` is what cksum(1), which every POSIX system has, prints for the program.
///
/// The copy and its directories belong to the user and are private (0700), whatever umask the login shell sets. It is
/// written beside its final name and then renamed, so a partial copy is never in its place.
pub fn install(cksum: &str) -> String {
    let version = env!("CARGO_PKG_VERSION");
    // One line without single quotes, backslashes and exclamation marks: csh and fish must pass it on unchanged.
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
         [ \"$v\" = \"gputop {version}\" ] || fail \"that program is no gputop {version}\"; \
         mv -f \"$n\" \"$d/gputop\" || fail'"
    )
}
