//! Where another host is: a name as ssh takes it, or a command.

use thiserror::Error;

use super::slurm::Step;
use super::ssh::Ssh;
use crate::model::text::quoted;

/// What stands in front of a command.
const VIA: &str = "via:";

/// A far host, and how to get there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Target {
    Ssh(Ssh),
    /// Any command whose standard input and output are a `gputop agent`, for a shell.
    Via(String),
    /// A node of a job; never written as a word, but expanded from the job.
    Slurm(Step),
}

#[derive(Debug, Error, PartialEq, Eq)]
pub enum TargetError {
    #[error("`via:` wants a command behind it: `via:kubectl exec -i POD -- gputop agent`")]
    NoCommand,
    #[error("`{}` is no host: one is written [user@]host[:port]", quoted(.0))]
    NoHost(String),
    #[error("`{}` is no port: it is a number from 1 to 65535", quoted(.0))]
    NoPort(String),
}

impl Target {
    /// # Errors
    /// When `word` can be neither, with the way it is written.
    pub fn parse(word: &str) -> Result<Self, TargetError> {
        if let Some(command) = word.strip_prefix(VIA) {
            let command = command.trim();
            return if command.is_empty() {
                Err(TargetError::NoCommand)
            } else {
                Ok(Self::Via(command.to_owned()))
            };
        }
        let no_host = || TargetError::NoHost(word.to_owned());
        // An IPv6 address has colons of its own, and stands in brackets where a port follows.
        let (host, port) = match word.rsplit_once(']') {
            Some((inside, "")) => (unbracketed(inside).ok_or_else(no_host)?, None),
            Some((inside, behind)) => {
                let port = behind.strip_prefix(':').ok_or_else(no_host)?;
                (unbracketed(inside).ok_or_else(no_host)?, Some(port))
            }
            None => match word.split_once(':') {
                Some((_, port)) if port.contains(':') => (word.to_owned(), None),
                Some((host, port)) => (host.to_owned(), Some(port)),
                None => (word.to_owned(), None),
            },
        };
        let port = port.map(|port| match port.parse::<u16>() {
            Ok(number @ 1..) => Ok(number),
            _ => Err(TargetError::NoPort(port.to_owned())),
        });
        let port = port.transpose()?;
        let name = host
            .rsplit_once('@')
            .map_or(host.as_str(), |(_, name)| name);
        // Nothing that ssh, or a shell on the way, would read as something else.
        let is_strange =
            |c: char| c.is_whitespace() || c.is_control() || "'\"`$\\;&|<>()".contains(c);
        if name.is_empty()
            || host.starts_with(['-', '@'])
            || name.starts_with('-')
            || host.contains(is_strange)
        {
            return Err(no_host());
        }
        Ok(Self::Ssh(Ssh { host, port }))
    }

    /// As [`Self::parse`] reads it.
    pub fn word(&self) -> String {
        match self {
            Self::Ssh(Ssh { host, port: None }) => host.clone(),
            Self::Ssh(Ssh {
                host,
                port: Some(port),
            }) => match host.rsplit_once('@') {
                Some((user, address)) if address.contains(':') => {
                    format!("{user}@[{address}]:{port}")
                }
                None if host.contains(':') => format!("[{host}]:{port}"),
                _ => format!("{host}:{port}"),
            },
            Self::Via(command) => format!("{VIA}{command}"),
            Self::Slurm(Step { job, node }) => {
                format!("{VIA}srun --jobid={job} --overlap --nodelist={node} gputop agent")
            }
        }
    }

    /// What it is shown as.
    pub fn name(&self) -> String {
        match self {
            Self::Ssh(_) => self.word(),
            Self::Via(command) => command.clone(),
            Self::Slurm(step) => step.node.clone(),
        }
    }
}

/// `user@[::1` → `user@::1`
fn unbracketed(inside: &str) -> Option<String> {
    let (before, address) = inside.split_once('[')?;
    let is_user = before.is_empty() || before.ends_with('@');
    is_user.then(|| format!("{before}{address}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ssh(host: &str, port: Option<u16>) -> Result<Target, TargetError> {
        Ok(Target::Ssh(Ssh {
            host: host.into(),
            port,
        }))
    }

    #[test]
    fn hosts_are_written_as_ssh_takes_them() {
        for (word, host, port) in [
            ("gpu1", "gpu1", None),
            ("me@gpu3:2222", "me@gpu3", Some(2222)),
            ("10.0.0.7:22", "10.0.0.7", Some(22)),
            ("fe80::1%eth0", "fe80::1%eth0", None),
            ("me@[::1]:2222", "me@::1", Some(2222)),
            ("[::1]", "::1", None),
        ] {
            let target = Target::parse(word);
            assert_eq!(target, ssh(host, port), "{word}");
            let again = target.and_then(|target| Target::parse(&target.word()));
            assert_eq!(again, ssh(host, port), "{word}");
        }
    }

    #[test]
    fn a_command_is_anything_behind_via() {
        let command = Target::parse("via: kubectl exec -i pod -- gputop agent");
        let expected = "kubectl exec -i pod -- gputop agent".to_owned();
        assert_eq!(command, Ok(Target::Via(expected)));
        assert_eq!(Target::parse("via: "), Err(TargetError::NoCommand));
    }

    #[test]
    fn what_ssh_would_take_for_an_option_or_a_shell_for_a_command_is_no_host() {
        for word in [
            "-oProxyCommand=x",
            "me@",
            "",
            "@gpu",
            "a b",
            "gpu;id",
            "me@-x",
            "x]y",
            "a\u{1b}b",
        ] {
            assert_eq!(
                Target::parse(word),
                Err(TargetError::NoHost(word.into())),
                "{word}"
            );
        }
        assert_eq!(
            Target::parse("gpu:ssh"),
            Err(TargetError::NoPort("ssh".into()))
        );
        assert_eq!(Target::parse("gpu:0"), Err(TargetError::NoPort("0".into())));
    }
}
