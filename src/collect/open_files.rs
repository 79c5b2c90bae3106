//! Room for open files: of each process its stat, its pidfd, its log, and what its allocator is read through.
//!
//! Most systems grant 1,024 to a program that says nothing, for the sake of those that still use select(2), and far
//! more to one that asks. What is started from here has the same; the command of `gputop run` is not started from
//! here.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Some ten for each of a few thousand processes.
const ENOUGH: u64 = 65_536;

/// Asks for as many as there may be. Where it is refused there are as many as there were.
pub fn ask_for_room() {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let wanted = maximum.map_or(ENOUGH, |most| most.min(ENOUGH));
    if current.is_none_or(|current| current >= wanted) {
        return;
    }
    let limit = Rlimit {
        current: Some(wanted),
        maximum,
    };
    if let Err(error) = setrlimit(Resource::Nofile, limit) {
        tracing::debug!(%error, "no more open files");
    }
}
