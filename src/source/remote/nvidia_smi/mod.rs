//! A host without gputop, as far as its `nvidia-smi` tells: the same frames, in which what it cannot know is missing with
//! that reason.
//!
//! ```text
//! here                                                          there
//! Feed ◄── view (Frame) ◄── lines ◄── stdout ◄═ ssh ═◄ sh ─► nvidia-smi, ps, /proc
//!             Pace ── `r 7 index,uuid,…` ──► stdin ═► ssh ═► │
//!                     `d 8`
//! ```
//!
//! One connection and one shell ([`script`]); each round is asked for when the one before has been heard, so a slow link has
//! fewer rounds and not older ones. What is dear, what each process does to its GPU and the MIG instances, is asked for less often,
//! between two rounds and never beside one. It observes no ends, logs or allocators, hence no incidents. There is no collector there,
//! so text loses its secrets here, before a frame exists.

mod cell;
mod facts;
mod fields;
mod host;
mod instances;
mod lines;
mod processes;
mod readings;
mod refusal;
mod schedule;
mod script;
mod usage;
mod view;

use std::io::{self, BufRead, Read};
use std::sync::Arc;

use self::lines::{Lines, ScriptLine};
pub(super) use self::refusal::{refused, untold};
use self::schedule::Pace;
pub(super) use self::script::{GREETING, found, script};
use self::view::View;
use super::outgoing::Orders;
use crate::model::reading::{Missing, Reason};
use crate::source::Update;

/// No line is longer; what is cut is left out.
const MAX_LINE: u64 = 4 << 10;

/// Reads to the end of what the loop there says, telling of every line what it means, if it is the last of something. What it
/// cannot know is missing for the reason `untold`.
pub(super) fn follow(
    from: &mut impl BufRead,
    untold: Missing,
    orders: &Orders,
    mut heard: impl FnMut(Option<Update>),
) -> Option<String> {
    let pace = Pace::default();
    std::thread::scope(|scope| {
        let asking = std::thread::Builder::new().name("far rounds".into());
        if let Err(error) = asking.spawn_scoped(scope, || pace.ask(orders)) {
            return Some(format!("the system gives no thread: {error}"));
        }
        let mut view = View::new(untold);
        let mut lines = Lines::default();
        let mut line = Vec::new();
        while let Ok(true) = next(from, &mut line) {
            let interval = Pace::interval(orders);
            let frame = match lines.take(&line) {
                Some(ScriptLine::Facts(facts)) => {
                    pace.begin(facts.query());
                    heard(Some(Update::Hello(Arc::new(view.hello(*facts)))));
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
            heard(frame.map(|frame| Update::Frame(Arc::new(frame))));
        }
        pace.end();
        None
    })
}

/// Reads everything that the nvidia-smi loop on a remote host prints. Entry point for the fuzz targets.
pub fn read_nvidia_smi(mut text: &[u8]) -> Vec<Update> {
    let untold = Missing::new(Reason::Unsupported, "not available from nvidia-smi");
    let mut updates = Vec::new();
    follow(&mut text, untold, &Orders::default(), |update| {
        updates.extend(update);
    });
    updates
}

/// Whether there was one more line; it is empty where it was too long.
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
