//! The address of a remote host: an ssh host name or a command.

use gputop_model::text::quoted;
use thiserror::Error;

use super::slurm::Step;
use super::ssh::Ssh;

/// Prefix that marks a target as a command.
const VIA: &str = "via:";

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Target {
    Ssh(Ssh),
    /// A shell command that connects its stdin and stdout to a `gputop agent`.
    Via(String),
    /// A node of a Slurm job. Created only by expanding a job; users cannot enter a node directly.
    Slurm(Step),
}

#[derive(Debug, Error, PartialEq, Eq)]
pub enum TargetError {
    #[error("`via:` requires a command, such as `via:kubectl exec -i POD -- gputop agent`")]
    MissingCommand,
    #[error("`{}` is not a valid host: use [user@]host[:port]", quoted(.0))]
    InvalidHost(String),
    #[error("`{}` is not a valid port: use a number from 1 to 65535", quoted(.0))]
    InvalidPort(String),
}

impl Target {
    /// Parses a target. Fails if `word` is neither a host nor a command.
    pub fn parse(word: &str) -> Result<Self, TargetError> {
        if let Some(command) = word.strip_prefix(VIA) {
            let command = command.trim();
            return if command.is_empty() {
                Err(TargetError::MissingCommand)
            } else {
                Ok(Self::Via(command.to_owned()))
            };
        }
        let invalid_host = || TargetError::InvalidHost(word.to_owned());
        // An IPv6 address contains colons, and is bracketed if a port follows.
        let (host, port) = match word.rsplit_once(']') {
            Some((before, "")) => (unbracketed(before).ok_or_else(invalid_host)?, None),
            Some((before, after)) => {
                let port = after.strip_prefix(':').ok_or_else(invalid_host)?;
                (unbracketed(before).ok_or_else(invalid_host)?, Some(port))
            }
            None => match word.split_once(':') {
                Some((_, port)) if port.contains(':') => (word.to_owned(), None),
                Some((host, port)) => (host.to_owned(), Some(port)),
                None => (word.to_owned(), None),
            },
        };
        let port = port.map(|port| match port.parse::<u16>() {
            Ok(number @ 1..) => Ok(number),
            _ => Err(TargetError::InvalidPort(port.to_owned())),
        });
        let port = port.transpose()?;
        let name = host.rsplit_once('@').map_or(host.as_str(), |(_, name)| name);
        // Reject characters that ssh or a shell would interpret.
        let is_special =
            |c: char| c.is_whitespace() || c.is_control() || "'\"`$\\;&|<>()".contains(c);
        if name.is_empty()
            || host.starts_with(['-', '@'])
            || name.starts_with('-')
            || host.contains(is_special)
        {
            return Err(invalid_host());
        }
        Ok(Self::Ssh(Ssh { host, port }))
    }

    /// Returns the text form accepted by [`Self::parse`].
    pub fn word(&self) -> String {
        match self {
            Self::Ssh(Ssh { host, port: None }) => host.clone(),
            Self::Ssh(Ssh { host, port: Some(port) }) => match host.rsplit_once('@') {
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

    pub fn name(&self) -> String {
        match self {
            Self::Ssh(_) => self.word(),
            Self::Via(command) => command.clone(),
            Self::Slurm(step) => step.node.clone(),
        }
    }
}

/// Removes the opening bracket of an IPv6 address: `user@[::1` → `user@::1`.
fn unbracketed(before: &str) -> Option<String> {
    let (before, address) = before.split_once('[')?;
    let is_user = before.is_empty() || before.ends_with('@');
    is_user.then(|| format!("{before}{address}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ssh(host: &str, port: Option<u16>) -> Result<Target, TargetError> {
        Ok(Target::Ssh(Ssh { host: host.into(), port }))
    }

    #[test]
    fn parses_hosts_in_the_form_of_ssh() {
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
    fn parses_a_command_after_via() {
        let command = Target::parse("via: kubectl exec -i pod -- gputop agent");
        let expected = "kubectl exec -i pod -- gputop agent".to_owned();
        assert_eq!(command, Ok(Target::Via(expected)));
        assert_eq!(Target::parse("via: "), Err(TargetError::MissingCommand));
    }

    #[test]
    fn rejects_options_and_shell_syntax() {
        for word in
            ["-oProxyCommand=x", "me@", "", "@gpu", "a b", "gpu;id", "me@-x", "x]y", "a\u{1b}b"]
        {
            assert_eq!(Target::parse(word), Err(TargetError::InvalidHost(word.into())), "{word}");
        }
        assert_eq!(Target::parse("gpu:ssh"), Err(TargetError::InvalidPort("ssh".into())));
        assert_eq!(Target::parse("gpu:0"), Err(TargetError::InvalidPort("0".into())));
    }
}
