//! Maximum times between observations of one failure.

use gputop_model::units::Millis;

/// Events from the same process that occur within this time of each other are treated as one failure.
pub const SAME_FAILURE_WINDOW: Millis = Millis(5_000);
/// An observation can explain the exit of a process if it was made at most this long before the exit. A Python
/// interpreter can take a long time to exit.
pub const EXIT_WINDOW: Millis = Millis(30_000);
/// Time after a failure by which all other ranks of the job should have failed too. By default, collective operations
/// time out after at most half an hour.
pub const OTHER_RANKS_TIMEOUT: Millis = Millis(45 * 60_000);
/// If the same failure happens again within this time, it is counted but not reported again.
pub const REPEAT_WINDOW: Millis = Millis(10 * 60_000);
