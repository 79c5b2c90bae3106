//! How the connection to a far host stands.

use super::units::Millis;

/// Frames say how old they are; this says whether there will be more.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Link {
    /// The first bytes are awaited.
    Connecting,
    /// The recording of it begins later than what is shown, by so much.
    Later {
        begins_in: Millis,
    },
    Up,
    /// Nothing was heard for longer than a frame should take.
    Silent {
        since: Millis,
    },
    /// It ended; what was known stays.
    Lost {
        /// Since when, at the time of telling.
        since: Millis,
        /// A clause without a final period, harmless to show.
        why: String,
        /// When it is tried again; 0 while it is.
        again_in: Millis,
        /// Somebody has to answer a question on the way there: a password, a passphrase, an unknown host key.
        asks: bool,
    },
}
