//! The message about the result of a signal.

use gputop_model::process::ProcessKey;
use gputop_model::reading::{Missing, Reason};
use gputop_model::signal::Signalled;

use super::rows::ProcessRow;

/// Describes the result of a signal in one line: `TERM delivered to 418 train.py`.
pub fn outcome_text(signalled: &Signalled, rows: &[ProcessRow]) -> String {
    let signal = signalled.signal.name();
    let name = |key: ProcessKey| {
        let row = rows.iter().find(|row| row.id().key == key);
        let command = row.and_then(|row| row.command().value().cloned());
        match command {
            Some(command) => format!("{} {command}", key.pid),
            None => key.pid.to_string(),
        }
    };
    match signalled.outcomes.as_slice() {
        [(key, Ok(()))] => format!("{signal} delivered to {}", name(*key)),
        [(key, Err(why))] => format!("{signal} to {} {}: {why}", key.pid, verdict(why)),
        outcomes => {
            let delivered = outcomes.iter().filter(|(_, outcome)| outcome.is_ok());
            let mut words = format!("{signal}: {} delivered", delivered.count());
            for (key, outcome) in outcomes {
                if let Err(why) = outcome {
                    words += &format!(", {} {}: {why}", key.pid, verdict(why));
                }
            }
            words
        }
    }
}

fn verdict(why: &Missing) -> &'static str {
    match why.reason {
        Reason::Denied => "denied",
        Reason::Gone => "not sent, process exited",
        _ => "not sent",
    }
}
