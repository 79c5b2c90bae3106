//! The way to a far host, before a screen is opened: ssh asks what it has to ask, and where there is no gputop, this one
//! is offered.

use std::io::{BufRead, IsTerminal};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use color_eyre::Result;
use color_eyre::eyre::{Context, bail, eyre};

use super::pushed_program::Program;
use super::say;
use crate::model::text::visible;
use crate::model::units::Millis;
use crate::source::remote::protocol::{GREETING, fits};
use crate::source::remote::ssh::{Shared, Ssh, install, look};
use crate::source::remote::{Connection, Target};
use crate::tui::InteractiveLogin;
use crate::user_files::{Base, directory, own_folder};

/// What may be done at the other end.
#[derive(Debug, Clone, clap::Args)]
#[group(skip)]
pub struct FarArgs {
    /// Copy this program, or FILE, a gputop for the machine there, to a host that has none, without asking
    #[arg(long, value_name = "FILE", num_args = 0..=1, require_equals = true, conflicts_with = "no_push")]
    push: Option<Option<PathBuf>>,
    /// Never copy it, and do not ask
    #[arg(long)]
    no_push: bool,
}

/// What may be done to a far host, beside looking.
#[derive(Debug, Clone, Copy, Default, clap::Args)]
#[group(skip)]
pub struct AllowedActions {
    /// Let signals be sent to processes of a far host
    #[arg(long = "allow-signals")]
    pub signals: bool,
    /// Let GPUs of a far host be probed
    #[arg(long = "allow-probe")]
    pub probe: bool,
    /// Follow log files on a remote host that you name with `w`
    #[arg(long = "allow-watch")]
    pub watch: bool,
}

/// Whether this program can be an agent.
const IS_AGENT: bool = cfg!(local);

/// What a look at a host told.
#[derive(Debug, PartialEq, Eq)]
enum HostCheck {
    Agent,
    NoAgent(Bare),
    /// It answers in its own way: whether there is an agent will be seen.
    Unknown,
}

/// A host without a gputop that can be talked to.
#[derive(Debug, Default, PartialEq, Eq)]
struct Bare {
    /// Its system and machine, as `uname -sm` prints them.
    machine: String,
    has_nvidia_smi: bool,
    /// The version of the gputop there, which speaks another protocol.
    other: Option<String>,
}

impl Bare {
    /// What it lacks, of a host of this name.
    fn lack(&self, host: &str) -> String {
        match &self.other {
            None => format!("there is no gputop on {host}"),
            Some(version) => format!("gputop {version} on {host} speaks another protocol"),
        }
    }
}

/// A connection that needs no more questions.
pub fn prepare(
    target: Target,
    interval: Millis,
    args: &FarArgs,
    may: AllowedActions,
) -> Result<Connection> {
    let connection = connection(target, interval, may);
    settle(&connection, args)?;
    Ok(connection)
}

/// As [`prepare`] for each. One that cannot be reached keeps its place: the others are watched meanwhile, and it is tried
/// again. All are looked at at once, then those are asked for that need an answer.
pub fn prepare_all(
    targets: Vec<Target>,
    interval: Millis,
    args: &FarArgs,
    may: AllowedActions,
) -> Vec<Connection> {
    let looked_at = std::thread::scope(|scope| {
        let looks = targets.into_iter().map(|target| {
            scope.spawn(move || {
                let connection = connection(target, interval, may);
                let has_agent = has_agent(&connection);
                (connection, has_agent)
            })
        });
        let looks: Vec<_> = looks.collect();
        let looks = looks.into_iter().filter_map(|look| look.join().ok());
        looks.collect::<Vec<_>>()
    });
    for (connection, has_agent) in &looked_at {
        if !has_agent && let Err(why) = settle(connection, args) {
            say(&format!("gputop: {why}\n"));
        }
    }
    looked_at.into_iter().map(|(one, _)| one).collect()
}

/// What asks the person what ssh has to ask, when a link was lost: where that is answered the next connection is shared.
pub fn way_in(connection: &Connection) -> Option<InteractiveLogin> {
    let Target::Ssh(ssh) = connection.target.clone() else {
        return None;
    };
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

fn connection(target: Target, interval: Millis, may: AllowedActions) -> Connection {
    let shared = match &target {
        Target::Ssh(ssh) => share(ssh),
        Target::Via(_) | Target::Slurm(_) => None,
    };
    Connection {
        target,
        interval,
        allow_signals: may.signals,
        allow_probe: may.probe,
        allow_watch: may.watch,
        shared,
    }
}

/// Lets ssh ask what it has to ask, and copies this program where there is none and it is wanted.
fn settle(connection: &Connection, args: &FarArgs) -> Result<()> {
    let Target::Ssh(ssh) = &connection.target else {
        return Ok(());
    };
    let shared = connection.shared.as_ref();
    let HostCheck::NoAgent(bare) = look_at(ssh, shared)? else {
        return Ok(());
    };
    let lack = bare.lack(&ssh.host);
    let is_wanted = args.push.is_some() || (!args.no_push && wants_copy(&lack));
    let went = if is_wanted {
        push(
            ssh,
            shared,
            args.push.clone().flatten().as_deref(),
            &bare.machine,
        )
    } else if IS_AGENT {
        Err(eyre!(
            "{lack}: install this version there, or `gputop --push {}` copies this one",
            ssh.host
        ))
    } else {
        Err(eyre!(
            "{lack}: install this version there, or `gputop --push=FILE {}` copies one for {}",
            ssh.host,
            bare.machine
        ))
    };
    match went {
        // Less is seen of it, which the screen says as long as it is so.
        Err(why) if bare.has_nvidia_smi => {
            if is_wanted {
                say(&format!(
                    "gputop: {why}; nvidia-smi there tells what it can\n"
                ));
            }
            Ok(())
        }
        went => went,
    }
}

/// Whether an agent is there and nothing is asked on the way to it.
fn has_agent(connection: &Connection) -> bool {
    let Target::Ssh(ssh) = &connection.target else {
        return true;
    };
    let mut command = ssh.silent(connection.shared.as_ref(), &look());
    command.stdin(Stdio::null()).stderr(Stdio::null());
    let output = command.output();
    output.is_ok_and(|output| seen(&String::from_utf8_lossy(&output.stdout)) == HostCheck::Agent)
}

/// Where ssh shares this connection: nowhere when the user's configuration says where, or there is no place.
fn share(ssh: &Ssh) -> Option<Shared> {
    let output = ssh.configuration().stderr(Stdio::null()).output().ok()?;
    let mut lines = output.stdout.lines().map_while(Result::ok);
    let is_told = |line: String| {
        line.strip_prefix("controlpath ")
            .is_some_and(|path| path != "none")
    };
    if lines.any(is_told) {
        return None;
    }
    let socket = directory(Base::Runtime, "ssh-%C").ok()?;
    own_folder(socket.parent()?).ok()?;
    // Linux takes 107 bytes, macOS 103; ssh writes 40 for %C, and 17 more while it makes it.
    let is_short = socket.as_os_str().len() + 38 + 17 < 103;
    is_short.then_some(Shared { socket })
}

fn look_at(ssh: &Ssh, shared: Option<&Shared>) -> Result<HostCheck> {
    let mut command = ssh.asking(shared, &look());
    command.stdin(Stdio::null());
    command.stdout(Stdio::piped()).stderr(Stdio::inherit());
    let output = run(command)?;
    let text = String::from_utf8_lossy(&output.stdout);
    match seen(&text) {
        HostCheck::Unknown if !output.status.success() => {
            // What it complained of stands above.
            let code = output
                .status
                .code()
                .map_or_else(|| "a signal".into(), |code| format!("exit code {code}"));
            bail!("ssh to {} ended with {code}", ssh.host)
        }
        seen => Ok(seen),
    }
}

fn run(mut command: Command) -> Result<std::process::Output> {
    let child = command.spawn();
    let child = child.wrap_err_with(|| {
        eyre!("`ssh` cannot be started; it comes with the package openssh-client")
    })?;
    Ok(child.wait_with_output()?)
}

fn seen(text: &str) -> HostCheck {
    let (mut bare, mut is_there) = (Bare::default(), false);
    for line in text.lines() {
        is_there |= line.starts_with("gputop-at ");
        bare.has_nvidia_smi |= line.starts_with("gputop-smi-at ");
        if let Some(machine) = line.strip_prefix("gputop-on ") {
            bare.machine = visible(machine.trim().as_bytes(), 60);
        }
        if let Some((_, words)) = line.split_once(GREETING) {
            match fits(words.as_bytes()) {
                Ok(()) => return HostCheck::Agent,
                Err(version) => bare.other = Some(version),
            }
        }
    }
    // One that did not greet will say why.
    let is_silent = is_there && bare.other.is_none();
    match is_silent || bare.machine.is_empty() {
        true => HostCheck::Unknown,
        false => HostCheck::NoAgent(bare),
    }
}

/// Asks the person, if there is one.
fn wants_copy(lack: &str) -> bool {
    if !IS_AGENT || !std::io::stdin().is_terminal() || !std::io::stderr().is_terminal() {
        return false;
    }
    let version = env!("CARGO_PKG_VERSION");
    let size = Program::own().map_or_else(|_| String::new(), |own| format!(" ({})", own.size()));
    say(&format!(
        "gputop: {lack}. Copy this one{size} to ~/.cache/gputop/{version} there? [y/N] "
    ));
    let mut answer = String::new();
    let _ = std::io::stdin().read_line(&mut answer);
    matches!(answer.trim(), "y" | "Y" | "yes")
}

/// Copies what is in `file`, or this program.
fn push(ssh: &Ssh, shared: Option<&Shared>, file: Option<&Path>, machine: &str) -> Result<()> {
    let host = &ssh.host;
    let program = match file {
        Some(file) => Program::in_file(file)?,
        None if IS_AGENT => Program::own()?,
        None => bail!(
            "this gputop is a client alone, of no use on {host}: install gputop there, or `gputop --push=FILE {host}` \
             copies one for {machine}"
        ),
    };
    if program.machine != Some(machine) {
        let what = if file.is_some() { "that" } else { "this" };
        bail!(
            "{host} is {machine}, and {what} program is for {}: install gputop there, or `gputop --push=FILE {host}` \
             copies one for it",
            program.machine.unwrap_or("another machine")
        );
    }
    let mut command = ssh.asking(shared, &install(&program.cksum()?));
    command
        .stdin(program.file)
        .stdout(Stdio::null())
        .stderr(Stdio::inherit());
    if !run(command)?.status.success() {
        bail!(
            "gputop could not be copied to {}, or does not run there: what went wrong stands above",
            ssh.host
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_host_says_is_found_among_what_its_shell_says() {
        let greeting = "gputop-agent protocol=1 version=0.1.0\n";
        let found =
            format!("Welcome!\ngputop-on Linux x86_64\ngputop-at /usr/bin/gputop\n{greeting}");
        assert_eq!(seen(&found), HostCheck::Agent);
        assert_eq!(seen(greeting), HostCheck::Agent);
        let none = |has_nvidia_smi, other: Option<&str>| {
            HostCheck::NoAgent(Bare {
                machine: "Linux aarch64".into(),
                has_nvidia_smi,
                other: other.map(Into::into),
            })
        };
        assert_eq!(
            seen("motd\r\ngputop-on Linux aarch64\r\n"),
            none(false, None)
        );
        let smi = "gputop-on Linux aarch64\ngputop-smi-at /usr/bin/nvidia-smi\n";
        assert_eq!(seen(smi), none(true, None));
        let other = format!("{smi}gputop-at gputop\ngputop-agent protocol=99 version=7.1\n");
        assert_eq!(seen(&other), none(true, Some("7.1")));
        let mute = "gputop-on Linux x86_64\ngputop-at gputop\n";
        assert_eq!(seen(mute), HostCheck::Unknown);
        assert_eq!(seen("This account is not available.\n"), HostCheck::Unknown);
    }
}
