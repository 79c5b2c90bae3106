//! Reads a host without gputop through its `nvidia-smi`. The frames are the same as from other sources. Data that
//! `nvidia-smi` does not provide is marked as missing, with this as the reason.
//!
//! ```text
//! this host                                                     remote host
//! Feed ◄── view (Frame) ◄── lines ◄── stdout ◄═ ssh ═◄ sh ─► nvidia-smi, ps, /proc
//!             PollSchedule ── `r 7 index,uuid,…` ──► stdin ═► ssh ═► │
//!                     `d 8`
//! ```
//!
//! Uses one connection and one shell ([`script`]). Each round is requested after the previous one was received, so a
//! slow connection gets fewer rounds instead of outdated ones. Expensive data (usage per process, and MIG instances) is
//! requested less often and between two rounds. Exits, logs and allocators are not observed, so there are no incidents.
//! No collector runs on the remote host, so this host removes secrets from text before it builds a frame.

mod cell;
mod facts;
mod fields;
mod host;
mod instances;
mod lines;
mod processes;
mod readings;
mod schedule;
pub(super) mod script;
mod usage;
mod view;

use std::io::{self, BufRead, Read};
use std::sync::Arc;

use gputop_model::protocol::Update;
use gputop_model::text::visible;
use gputop_model::{Missing, Reason};

use self::lines::{ScriptLine, SmiLines};
use self::schedule::PollSchedule;
use self::view::View;
use super::outgoing::RequestWriter;
use super::target::Target;

/// Maximum length of a script output line; longer lines are skipped.
const MAX_LINE: u64 = 4 << 10;

/// Reads the remote script's output until it ends. Calls `received` for every line and passes the update that the line
/// completes, if any. Unavailable data is marked as missing with the reason `unavailable`.
pub(super) fn follow(
    from: &mut impl BufRead,
    unavailable: Missing,
    writer: &RequestWriter,
    mut received: impl FnMut(Option<Update>),
) -> Option<String> {
    let pace = PollSchedule::default();
    std::thread::scope(|scope| {
        let asking = std::thread::Builder::new().name("remote rounds".into());
        if let Err(error) = asking.spawn_scoped(scope, || pace.send_requests(writer)) {
            return Some(format!("cannot start a thread: {error}"));
        }
        let mut view = View::new(unavailable);
        let mut lines = SmiLines::default();
        let mut line = Vec::new();
        while let Ok(true) = next(from, &mut line) {
            let interval = PollSchedule::interval(writer);
            let frame = match lines.take(&line) {
                Some(ScriptLine::Facts(facts)) => {
                    pace.set_query(facts.query());
                    received(Some(Update::Hello(Arc::new(view.hello(*facts)))));
                    continue;
                }
                Some(ScriptLine::Round(round)) => {
                    let frame = view.frame(&round, interval);
                    pace.answered(round.number, view.wants());
                    Some(frame)
                }
                Some(ScriptLine::Details(details)) => {
                    view.take(&details);
                    pace.answered(details.number, view.wants());
                    None
                }
                Some(ScriptLine::Clocks(clocks)) => {
                    let overdue = pace.overdue();
                    overdue.map(|since| view.silent(clocks, since, interval))
                }
                None => None,
            };
            received(frame.map(|frame| Update::Frame(Arc::new(frame))));
        }
        pace.end();
        None
    })
}

/// Returns the reason for missing data and actions. `other` is the version of a remote gputop with a different
/// protocol.
pub(super) fn unavailable(target: &Target, other: Option<&str>) -> Missing {
    let name = visible(target.name().as_bytes(), 60);
    let own = env!("CARGO_PKG_VERSION");
    let hint = match (other, target) {
        (Some(other), _) => {
            format!(
                "{name} is read through nvidia-smi: gputop {other} there uses a different protocol from {own} on this host"
            )
        }
        (None, Target::Ssh(_)) => {
            format!("{name} has only nvidia-smi; `gputop --push {name}` copies gputop there")
        }
        (None, Target::Via(_) | Target::Slurm(_)) => {
            format!("{name} has only nvidia-smi; gputop is not installed there")
        }
    };
    Missing::new(Reason::Unsupported, hint)
}

/// Reads the output of the nvidia-smi loop on a remote host. Entry point for the fuzz targets.
pub fn read_nvidia_smi(mut text: &[u8]) -> Vec<Update> {
    let unavailable = Missing::new(Reason::Unsupported, "not available from nvidia-smi");
    let mut updates = Vec::new();
    follow(&mut text, unavailable, &RequestWriter::default(), |update| {
        updates.extend(update);
    });
    updates
}

/// Reads a line into `line`, which is left empty if the line is too long. Returns false at the end of the output.
fn next(from: &mut impl BufRead, line: &mut Vec<u8>) -> io::Result<bool> {
    line.clear();
    if from.by_ref().take(MAX_LINE).read_until(b'\n', line)? == 0 {
        return Ok(false);
    }
    if line.pop_if(|last| *last == b'\n').is_some() {
        return Ok(true);
    }
    line.clear();
    let is_cut = from.skip_until(b'\n')? > 0;
    Ok(is_cut)
}
