//! Permissions for actions that go beyond reading data about processes and GPUs.

/// Permission for each action, or the reason why it is denied: a phrase without a period.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Permissions {
    pub signals: Result<(), &'static str>,
    pub probes: Result<(), &'static str>,
    /// Permission to follow a file as a process's log.
    pub watches: Result<(), &'static str>,
}

impl Permissions {
    /// Permissions that allow every action.
    pub const ALL: Self = Self { signals: Ok(()), probes: Ok(()), watches: Ok(()) };

    /// Returns permissions that deny all actions, with `why` as the reason.
    pub const fn none(why: &'static str) -> Self {
        Self { signals: Err(why), probes: Err(why), watches: Err(why) }
    }

    /// Returns the permissions for the local `--readonly` option.
    pub const fn readonly(is_set: bool) -> Self {
        if is_set {
            Self { watches: Ok(()), ..Self::none("gputop was started with --readonly") }
        } else {
            Self::ALL
        }
    }

    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self {
            signals: self.signals.and(other.signals),
            probes: self.probes.and(other.probes),
            watches: self.watches.and(other.watches),
        }
    }
}
