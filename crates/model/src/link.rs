//! State of the connection to a remote host.

use super::units::Millis;

/// State of the connection to a remote host. A frame's time shows how old the data is; the connection state shows
/// whether more frames will arrive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Link {
    /// Waiting for the first bytes from the host.
    Connecting,
    /// The host's recording starts `begins_in` after the displayed time.
    Later {
        begins_in: Millis,
    },
    Up,
    /// No data has arrived for longer than the expected time between frames.
    Silent {
        since: Millis,
    },
    /// The connection was lost. The data received so far stays on screen.
    Lost {
        /// Time since the connection was lost.
        since: Millis,
        /// Reason for the loss: a phrase without a period, escaped for display.
        why: String,
        /// Time until the next connection attempt, or 0 during an attempt.
        again_in: Millis,
        /// True if connecting needs user input: a password, a passphrase, or confirmation of a host key.
        asks: bool,
    },
}
