//! Measures `gputop explain`: speed on a quiet log, memory on a long stream, time for a short log, and accuracy on a
//! folder of labelled logs.
//!
//! ```text
//! cargo bench --bench explain                        # speed, memory, start to end
//! cargo bench --bench explain -- --corpus DIR        # and detection, id, fields, false alarms
//! cargo bench --bench explain -- --logs DIR          # every incident in ordinary logs, which should have none
//! cargo bench --bench explain -- --stream 2          # 2 GB through standard input instead of 10
//! cargo bench --bench explain -- --strict            # a figure that is missed is a failure
//! ```
//!
//! A corpus is a folder of logs with two tables. `labels.tsv` has the columns file, family, kind, framework, version,
//! fields and others; the kind `none` marks a log without an incident. `kinds.tsv` lists for each kind the card ids
//! that count as correct.
#![allow(clippy::print_stdout, clippy::unwrap_used)]

mod corpus;
mod logs;
mod speed;

use std::path::PathBuf;
use std::process::ExitCode;

/// A measured value, its target, and whether the target is met.
pub struct Figure {
    pub what: String,
    pub reached: String,
    pub wanted: String,
    pub met: bool,
}

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let folder = |name: &str| {
        let at = args.iter().position(|a| a == name)?;
        args.get(at + 1).map(PathBuf::from)
    };
    let mut figures = Vec::new();
    if let Some(folder) = folder("--corpus") {
        figures.extend(corpus::score(&folder));
    }
    if let Some(folder) = folder("--logs") {
        figures.extend(logs::alarms(&folder));
    }
    if figures.is_empty() || args.iter().any(|a| a == "--speed") {
        let stream = args.iter().position(|a| a == "--stream");
        let stream = stream.and_then(|at| args.get(at + 1)?.parse().ok());
        figures.extend(speed::measure(stream.unwrap_or(10)));
    }
    for figure in &figures {
        let verdict = if figure.met { "met" } else { "MISSED" };
        println!("{:<52} {:>14} {:>14}  {verdict}", figure.what, figure.reached, figure.wanted);
    }
    let strict = args.iter().any(|a| a == "--strict");
    let missed = figures.iter().any(|figure| !figure.met);
    ExitCode::from(u8::from(strict && missed))
}
