//! State of the connection to a remote host.

use super::units::Millis;

/// Connection state. Frames carry their age; this says whether more of them will come.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Link {
    /// Waiting for the first bytes.
    Connecting,
    /// The host's recording begins this much later than the time shown.
    Later {
        begins_in: Millis,
    },
    Up,
    /// Nothing was received for longer than a frame should take.
    Silent {
        since: Millis,
    },
    /// The connection ended; the data received so far stays on screen.
    Lost {
        /// Time since the loss, when this value was created.
        since: Millis,
        /// The reason: a clause without a final period, escaped for display.
        why: String,
        /// Time until the next attempt; 0 during an attempt.
        again_in: Millis,
        /// True if connecting needs user input: a password, a passphrase, or confirmation of a host key.
        asks: bool,
    },
}
