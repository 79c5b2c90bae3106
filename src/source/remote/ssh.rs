//! The system's ssh, as it is called: the user's configuration, keys and jumps are ssh's own business.

use std::path::PathBuf;
use std::process::Command;

use crate::open_files::restore_in;

use super::reduced;

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

/// Sets `p` to a gputop there that runs, and does then what follows.
fn with_gputop(then: &str) -> String {
    let places = places();
    format!(
        "for g in {places}; do p=$(command -v \"$g\" 2>/dev/null) && \"$p\" --version >/dev/null 2>&1 </dev/null && \
         {then}; done"
    )
}

/// Becomes the agent, or without one what [`reduced`] runs; 127 where there is neither. Whatever shell it is that gets this,
/// `sh` runs it.
pub(super) fn agent(arguments: &str) -> String {
    let agent = with_gputop(&format!("exec \"$p\" agent{arguments}"));
    let nvidia_smi = nvidia_smi_loop();
    format!("sh -c '{agent}; {nvidia_smi}'")
}

/// The same, whatever gputop there is.
pub(super) fn nvidia_smi() -> String {
    format!("sh -c '{}'", nvidia_smi_loop())
}

fn nvidia_smi_loop() -> String {
    let (found, script) = (reduced::found(), reduced::script());
    format!(
        "{found} || {{ echo \"there is neither gputop nor nvidia-smi on that host\" >&2; exit 127; }}; {script}"
    )
}

/// Says what there is: `gputop-on Linux x86_64`, `gputop-smi-at PATH`, and of a gputop `gputop-at PATH` with its greeting.
pub fn look() -> String {
    let found = reduced::found();
    let greeting = "\"$p\" agent </dev/null 2>/dev/null | head -n 1";
    let agent = with_gputop(&format!("echo \"gputop-at $p\" && {greeting} && exit 0"));
    format!(
        "sh -c 'echo \"gputop-on $(uname -sm)\"; {{ {found}; }} && echo \"gputop-smi-at $s\"; {agent}; exit 0'"
    )
}

/// Takes a program of so many bytes from its input and puts it where the agent is looked for first, if it runs there and is a
/// gputop of this version. A half copy is never in its place.
pub fn install(bytes: u64) -> String {
    let version = env!("CARGO_PKG_VERSION");
    format!(
        "sh -c 'umask 077; d=\"$HOME/.cache/gputop/{version}\"; n=\"$d/.new.$$\"; mkdir -p \"$d\" && cat > \"$n\" && \
         [ \"$(wc -c < \"$n\")\" -eq {bytes} ] && chmod 700 \"$n\" && v=$(\"$n\" --version) && \
         {{ [ \"$v\" = \"gputop {version}\" ] || {{ echo \"that program is no gputop {version}\" >&2; false; }}; }} && \
         mv -f \"$n\" \"$d/gputop\" || {{ rm -f \"$n\"; exit 1; }}'"
    )
}
