//! Prepares connections to remote hosts before a screen opens: lets ssh prompt for passwords, and offers to copy gputop
//! to hosts that lack it.

use std::io::{BufRead, IsTerminal};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use color_eyre::Result;
use color_eyre::eyre::{Context, bail, eyre};
use gputop_model::text::visible;
use gputop_model::{Millis, Permissions};

use super::print::say;
use super::pushed_program::Program;
use crate::source::remote::greeting::{GREETING, fits};
use crate::source::remote::ssh::{Shared, Ssh, install, look};
use crate::source::remote::{Connection, Target};
use crate::tui::InteractiveLogin;
use crate::user_files::{Base, directory, own_folder};

/// Options for copying gputop to remote hosts.
#[derive(Debug, Clone, clap::Args)]
#[group(skip)]
pub struct PushArgs {
    /// Copy this program, or the gputop in FILE, to remote hosts that lack it, without asking
    #[arg(long, value_name = "FILE", num_args = 0..=1, require_equals = true, conflicts_with = "no_push")]
    push: Option<Option<PathBuf>>,
    /// Never copy gputop to remote hosts, and do not ask
    #[arg(long)]
    no_push: bool,
}

/// Actions on remote hosts that the user allows.
#[derive(Debug, Clone, Copy, Default, clap::Args)]
#[group(skip)]
pub struct AllowedActions {
    /// Allow sending signals to processes on remote hosts
    #[arg(long = "allow-signals")]
    pub signals: bool,
    /// Allow probing GPUs of remote hosts
    #[arg(long = "allow-probe")]
    pub probe: bool,
    /// Allow the `w` key to watch log files on remote hosts
    #[arg(long = "allow-watch")]
    pub watch: bool,
}

impl AllowedActions {
    /// Returns the permissions for signals, probes and watched logs, with the reasons for denied ones.
    pub fn permissions(self, why_denied: [&'static str; 3]) -> Permissions {
        let permission = |is_allowed: bool, why| is_allowed.then_some(()).ok_or(why);
        let [signals, probes, watches] = why_denied;
        Permissions {
            signals: permission(self.signals, signals),
            probes: permission(self.probe, probes),
            watches: permission(self.watch, watches),
        }
    }

    fn agent_arguments(self) -> String {
        let arguments = [
            (self.signals, " --allow-signals"),
            (self.probe, " --allow-probe"),
            (self.watch, " --allow-watch"),
        ];
        arguments.iter().filter(|(is_allowed, _)| *is_allowed).map(|(_, text)| *text).collect()
    }
}

/// True if this program can run as an agent.
const IS_AGENT: bool = cfg!(local);

/// Result of checking a remote host for gputop.
#[derive(Debug, PartialEq, Eq)]
enum HostCheck {
    Agent,
    NoAgent(MissingAgent),
    /// The output of the check is not recognized. Only connecting will show whether the host has an agent.
    Unknown,
}

/// A host without a compatible gputop.
#[derive(Debug, Default, PartialEq, Eq)]
struct MissingAgent {
    /// Operating system and architecture as printed by `uname -sm`.
    machine: String,
    has_nvidia_smi: bool,
    /// Version of the installed gputop if it uses a different protocol.
    incompatible_version: Option<String>,
}

impl MissingAgent {
    fn problem(&self, host: &str) -> String {
        match &self.incompatible_version {
            None => format!("no gputop found on {host}"),
            Some(version) => format!("gputop {version} on {host} uses a different protocol"),
        }
    }
}

/// Prepares a connection to a remote host, so that connecting later does not prompt.
pub fn prepare(
    target: Target,
    interval: Millis,
    args: &PushArgs,
    allowed: AllowedActions,
) -> Result<Connection> {
    let connection = connection(target, interval, allowed);
    ensure_agent(&connection, args)?;
    Ok(connection)
}

/// Prepares several connections. An unreachable host stays in the list, and connecting to it is tried again later.
///
/// Checks all hosts in parallel without prompts, then prepares those that need a prompt one after another.
pub fn prepare_all(
    targets: Vec<Target>,
    interval: Millis,
    args: &PushArgs,
    allowed: AllowedActions,
) -> Vec<Connection> {
    let checked = std::thread::scope(|scope| {
        let checks = targets.into_iter().map(|target| {
            scope.spawn(move || {
                let connection = connection(target, interval, allowed);
                let has_agent = has_agent(&connection);
                (connection, has_agent)
            })
        });
        let checks = checks.collect::<Vec<_>>().into_iter().filter_map(|check| check.join().ok());
        checks.collect::<Vec<_>>()
    });
    for (connection, has_agent) in &checked {
        if !has_agent && let Err(why) = ensure_agent(connection, args) {
            say(&format!("gputop: {why}\n"));
        }
    }
    checked.into_iter().map(|(connection, _)| connection).collect()
}

/// Returns the ssh command that lets the user log in again after a connection was lost. The next connection reuses this
/// login.
pub fn interactive_login(connection: &Connection) -> Option<InteractiveLogin> {
    let Target::Ssh(ssh) = connection.target.clone() else { return None };
    let shared = connection.shared.clone();
    Some(InteractiveLogin {
        to: visible(connection.target.name().as_bytes(), 60),
        command: Box::new(move || {
            let mut command = ssh.asking(shared.as_ref(), &look());
            command.stdin(Stdio::null()).stdout(Stdio::null());
            command
        }),
    })
}

fn connection(target: Target, interval: Millis, allowed: AllowedActions) -> Connection {
    let shared = match &target {
        Target::Ssh(ssh) => shared_connection(ssh),
        Target::Via(_) | Target::Slurm(_) => None,
    };
    Connection { target, interval, agent_arguments: allowed.agent_arguments(), shared }
}

/// Lets ssh prompt for a password if necessary. If the host lacks gputop and the user agrees, copies this program to
/// it.
fn ensure_agent(connection: &Connection, args: &PushArgs) -> Result<()> {
    let Target::Ssh(ssh) = &connection.target else { return Ok(()) };
    let shared = connection.shared.as_ref();
    let HostCheck::NoAgent(missing) = check_host(ssh, shared)? else { return Ok(()) };
    let problem = missing.problem(&ssh.host);
    let should_copy = args.push.is_some() || (!args.no_push && confirm_copy(&problem));
    let result = if should_copy {
        push(ssh, shared, args.push.clone().flatten().as_deref(), &missing.machine)
    } else if IS_AGENT {
        Err(eyre!(
            "{problem}. Install this version there, or copy it with `gputop --push {}`",
            ssh.host
        ))
    } else {
        Err(eyre!(
            "{problem}. Install this version there, or copy one for {} with `gputop --push=FILE {}`",
            missing.machine,
            ssh.host
        ))
    };
    match result {
        // Fall back to nvidia-smi, which provides less data. The dashboard tells the user about this.
        Err(why) if missing.has_nvidia_smi => {
            if should_copy {
                say(&format!("gputop: {why}. Using nvidia-smi on {} instead\n", ssh.host));
            }
            Ok(())
        }
        result => result,
    }
}

/// Returns true if the host has an agent that can be reached without a prompt.
fn has_agent(connection: &Connection) -> bool {
    let Target::Ssh(ssh) = &connection.target else { return true };
    let mut command = ssh.silent(connection.shared.as_ref(), &look());
    command.stdin(Stdio::null()).stderr(Stdio::null());
    let output = command.output();
    output.is_ok_and(|output| {
        parse_check(&String::from_utf8_lossy(&output.stdout)) == HostCheck::Agent
    })
}

/// Returns the socket for sharing this ssh connection. Returns `None` if the user's ssh configuration already names a
/// socket, or if no directory is suitable for one.
fn shared_connection(ssh: &Ssh) -> Option<Shared> {
    let output = ssh.configuration().stderr(Stdio::null()).output().ok()?;
    let mut lines = output.stdout.lines().map_while(Result::ok);
    let is_configured =
        |line: String| line.strip_prefix("controlpath ").is_some_and(|path| path != "none");
    if lines.any(is_configured) {
        return None;
    }
    let socket = directory(Base::Runtime, "ssh-%C").ok()?;
    own_folder(socket.parent()?).ok()?;
    // A socket path is limited to 107 bytes on Linux and 103 on macOS. ssh replaces %C with 40 characters, and appends
    // 17 more while it creates the socket.
    let is_short = socket.as_os_str().len() + 38 + 17 < 103;
    is_short.then_some(Shared { socket })
}

fn check_host(ssh: &Ssh, shared: Option<&Shared>) -> Result<HostCheck> {
    let mut command = ssh.asking(shared, &look());
    command.stdin(Stdio::null());
    command.stdout(Stdio::piped()).stderr(Stdio::inherit());
    let output = run(command)?;
    let text = String::from_utf8_lossy(&output.stdout);
    match parse_check(&text) {
        HostCheck::Unknown if !output.status.success() => {
            // ssh has already printed the reason.
            let code = output
                .status
                .code()
                .map_or_else(|| "a signal".into(), |code| format!("exit code {code}"));
            bail!("ssh to {} failed with {code}", ssh.host)
        }
        check => Ok(check),
    }
}

fn run(mut command: Command) -> Result<std::process::Output> {
    let child = command.spawn();
    let child = child.wrap_err_with(|| {
        eyre!("cannot run `ssh`. Install it; on Debian and Ubuntu, it is in the package openssh-client")
    })?;
    Ok(child.wait_with_output()?)
}

fn parse_check(text: &str) -> HostCheck {
    let (mut missing, mut is_installed) = (MissingAgent::default(), false);
    for line in text.lines() {
        is_installed |= line.starts_with("gputop-at ");
        missing.has_nvidia_smi |= line.starts_with("gputop-smi-at ");
        if let Some(machine) = line.strip_prefix("gputop-on ") {
            missing.machine = visible(machine.trim().as_bytes(), 60);
        }
        if let Some((_, greeting)) = line.split_once(GREETING) {
            match fits(greeting.as_bytes()) {
                Ok(()) => return HostCheck::Agent,
                Err(version) => missing.incompatible_version = Some(version),
            }
        }
    }
    // If gputop is installed but sent no greeting, connecting to it will show the reason.
    let is_silent = is_installed && missing.incompatible_version.is_none();
    if is_silent || missing.machine.is_empty() {
        HostCheck::Unknown
    } else {
        HostCheck::NoAgent(missing)
    }
}

/// Asks the user whether to copy gputop, if stdin and stderr are terminals.
fn confirm_copy(problem: &str) -> bool {
    if !IS_AGENT || !std::io::stdin().is_terminal() || !std::io::stderr().is_terminal() {
        return false;
    }
    let version = env!("CARGO_PKG_VERSION");
    let size = Program::own().map_or_else(|_| String::new(), |own| format!(" ({})", own.size));
    say(&format!(
        "gputop: {problem}. Copy this program{size} to ~/.cache/gputop/{version} there? [y/N] "
    ));
    let mut answer = String::new();
    let _ = std::io::stdin().read_line(&mut answer);
    matches!(answer.trim(), "y" | "Y" | "yes")
}

/// Copies `file`, or this program, to a host of type `machine`.
fn push(ssh: &Ssh, shared: Option<&Shared>, file: Option<&Path>, machine: &str) -> Result<()> {
    let host = &ssh.host;
    let program = match file {
        Some(file) => Program::in_file(file)?,
        None if IS_AGENT => Program::for_machine(machine)?,
        None => bail!(
            "cannot copy this program to {host}: this build is a client without an agent. Install gputop there, or copy \
             one for {machine} with `gputop --push=FILE {host}`"
        ),
    };
    if program.machine != Some(machine) {
        let which = if file.is_some() { "that" } else { "this" };
        bail!(
            "cannot copy {which} program to {host}: it is for {}, but {host} is {machine}. Install gputop there, or copy \
             one for {machine} with `gputop --push=FILE {host}`",
            program.machine.unwrap_or("another machine")
        );
    }
    let mut command = ssh.asking(shared, &install(&program.cksum()?));
    command.stdin(program.file.try_clone()?).stdout(Stdio::null()).stderr(Stdio::inherit());
    if !run(command)?.status.success() {
        bail!(
            "cannot copy gputop to {host}, or cannot run it there; see the error above. If it names GLIBC, copy the \
             release binary with `--push=FILE`, which needs only glibc 2.17"
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_the_answer_of_a_host_within_the_output_of_its_shell() {
        let greeting = "gputop-agent protocol=1 version=0.1.0\n";
        let found =
            format!("Welcome!\ngputop-on Linux x86_64\ngputop-at /usr/bin/gputop\n{greeting}");
        assert_eq!(parse_check(&found), HostCheck::Agent);
        assert_eq!(parse_check(greeting), HostCheck::Agent);
        let none = |has_nvidia_smi, version: Option<&str>| {
            HostCheck::NoAgent(MissingAgent {
                machine: "Linux aarch64".into(),
                has_nvidia_smi,
                incompatible_version: version.map(Into::into),
            })
        };
        assert_eq!(parse_check("motd\r\ngputop-on Linux aarch64\r\n"), none(false, None));
        let smi = "gputop-on Linux aarch64\ngputop-smi-at /usr/bin/nvidia-smi\n";
        assert_eq!(parse_check(smi), none(true, None));
        let other = format!("{smi}gputop-at gputop\ngputop-agent protocol=99 version=7.1\n");
        assert_eq!(parse_check(&other), none(true, Some("7.1")));
        let mute = "gputop-on Linux x86_64\ngputop-at gputop\n";
        assert_eq!(parse_check(mute), HostCheck::Unknown);
        assert_eq!(parse_check("This account is not available.\n"), HostCheck::Unknown);
    }
}
