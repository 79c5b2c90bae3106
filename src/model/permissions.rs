//! What the user lets be done to processes and cards, beside looking at them.

/// Of each whether it may be done; where not, what forbids it: a clause without a final period.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Permissions {
    pub signals: Result<(), &'static str>,
    pub probes: Result<(), &'static str>,
    /// Whether a person may name a file to follow as a log.
    pub watches: Result<(), &'static str>,
}

impl Permissions {
    /// Everything that asks first.
    pub const ALL: Self = Self {
        signals: Ok(()),
        probes: Ok(()),
        watches: Ok(()),
    };

    /// Nothing, for this reason.
    pub const fn none(why: &'static str) -> Self {
        Self {
            signals: Err(why),
            probes: Err(why),
            watches: Err(why),
        }
    }

    /// `--readonly`, said by whoever sits here.
    pub const fn readonly(is_set: bool) -> Self {
        if is_set {
            Self {
                watches: Ok(()),
                ..Self::none("gputop was started with --readonly")
            }
        } else {
            Self::ALL
        }
    }

    /// What both allow.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self {
            signals: self.signals.and(other.signals),
            probes: self.probes.and(other.probes),
            watches: self.watches.and(other.watches),
        }
    }
}
