//! State of the connection to a remote host.

use super::units::Millis;

/// State of the connection. Frames contain their age, and the connection state shows whether more frames will arrive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Link {
    /// Waiting for the first bytes.
    Connecting,
    /// The host's recording begins this much later than the displayed time.
    Later {
        begins_in: Millis,
    },
    Up,
    /// Nothing was received for longer than a frame should take.
    Silent {
        since: Millis,
    },
    /// The connection ended. The data received so far stays on screen.
    Lost {
        /// Time between the loss and the creation of this value.
        since: Millis,
        /// The reason: a phrase without a period, escaped for display.
        why: String,
        /// Time until the next attempt, or 0 during an attempt.
        again_in: Millis,
        /// True if connecting needs user input: a password, a passphrase, or confirmation of a host key.
        asks: bool,
    },
}
