//! What the history of a program that ran out of memory says of the fixes: each of them that is another setting of
//! PyTorch's allocator is played, and says whether the request would have succeeded.
//!
//! Nothing is said where the program's own setting, played, does not fail where the program did: then the model does
//! not know something that the program did, such as a memory fraction set in its code.

use std::cmp::Reverse;

use crate::allocator::config::Config;
use crate::allocator::rules::{NEWEST, Rules, Torch};
use crate::allocator::trace::{Op, Trace};
use crate::allocator::whatif::{Outlook, Room, replay};
use crate::model::incident::{Fix, FixKind, Incident};
use crate::model::units::Bytes;

/// How a fix's command sets it; PyTorch takes both names.
const VARIABLES: &[&str] = &["PYTORCH_CUDA_ALLOC_CONF=", "PYTORCH_ALLOC_CONF="];

/// Some fix is a setting that could be played.
#[must_use]
pub fn has_settings(incident: &Incident) -> bool {
    incident.is_gpu_oom() && incident.fixes.iter().any(|fix| conf_of(fix).is_some())
}

/// The trace up to the request that failed with so much free on the card; `None` where it holds no such one.
#[must_use]
pub fn until(mut trace: Trace, free: Bytes) -> Option<Trace> {
    let is_it =
        |op: &Op| matches!(op, Op::Refused { driver_free, .. } if *driver_free == Some(free));
    let at = trace.ops.iter().rposition(is_it)?;
    trace.ops.truncate(at + 1);
    Some(trace)
}

/// Plays `trace`, whose last operation is the request that failed, under each fix's setting, and puts into its effect
/// what came of it. Those under which it succeeds come first, those under which it fails last.
///
/// # Errors
/// Why nothing can be said: a sentence.
pub fn foretell(incident: &mut Incident, trace: &Trace, room: Room) -> Result<(), String> {
    let torch = trace.recorded.torch.unwrap_or(NEWEST);
    let present = Config::parse(trace.recorded.conf.as_deref().unwrap_or_default());
    let own = replay(trace, &Rules::new(torch, &present), room);
    if verdict(&own, trace) != Verdict::Same {
        return Err(
            "The allocation trace, played again, does not fail where the program did: which settings help is not known."
                .to_owned(),
        );
    }
    let mut order = Vec::new();
    for fix in &mut incident.fixes {
        let rules = conf_of(fix).and_then(|conf| rules(conf, present, torch));
        let Some(rules) = rules else {
            order.push(None);
            continue;
        };
        let outlook = replay(trace, &rules, room);
        let verdict = verdict(&outlook, trace);
        let said = words(verdict, &outlook, &own);
        let before = fix.effect.take();
        fix.effect = Some(before.map_or(said.clone(), |before| format!("{said}; {before}")));
        order.push(Some(verdict == Verdict::Fits));
    }
    let mut fixes: Vec<_> = order.into_iter().zip(incident.fixes.drain(..)).collect();
    // What is not known stands between.
    fixes.sort_by_key(|(fits, _)| Reverse(fits.map_or(1, |fits| if fits { 2 } else { 0 })));
    incident.fixes = fixes.into_iter().map(|(_, fix)| fix).collect();
    if trace.cut {
        let last = trace.ops.len();
        incident.needs.insert(
            0,
            format!(
                "What the fixes are said to do is of the last {last} operations, all that PyTorch kept: what was cached \
                 before them is not known."
            ),
        );
    }
    Ok(())
}

/// `expandable_segments:True` of `PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True python train.py`.
fn conf_of(fix: &Fix) -> Option<&str> {
    if fix.kind != FixKind::Env {
        return None;
    }
    let mut after = VARIABLES
        .iter()
        .filter_map(|name| fix.change.split_once(name));
    after.next()?.1.split_whitespace().next()
}

/// `None` for what that release does not know, and what cannot be played.
fn rules(conf: &str, present: Config, torch: Torch) -> Option<Rules> {
    let mut config = Config::read(conf, torch).ok()?;
    // A limit that somebody set is none of the allocator's habits: it stays.
    config.memory_fraction = config.memory_fraction.or(present.memory_fraction);
    Some(Rules::new(torch, &config))
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verdict {
    Fits,
    /// The request that failed fails.
    Same,
    /// One before it does.
    Earlier,
}

fn verdict(outlook: &Outlook, trace: &Trace) -> Verdict {
    match outlook.last_oom {
        Some(oom) if oom.operation < trace.ops.len() && !oom.recorded => Verdict::Earlier,
        Some(oom) if oom.operation == trace.ops.len() => Verdict::Same,
        _ => Verdict::Fits,
    }
}

fn words(verdict: Verdict, outlook: &Outlook, own: &Outlook) -> String {
    let (then, now) = (outlook.peak_reserved, own.peak_reserved);
    match verdict {
        Verdict::Fits if then < now => {
            format!("replayed: peak reserved {then} instead of {now}, fits")
        }
        Verdict::Fits => format!("replayed: fits, with a peak of {then} reserved"),
        Verdict::Same => "replayed: fails at the same request".to_owned(),
        Verdict::Earlier => {
            let wanted = outlook
                .last_oom
                .map(|oom| oom.requested)
                .unwrap_or_default();
            format!("replayed: fails even earlier, at a request for {wanted}")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::allocator::trace::{PoolId, Recorded, Seen};

    /// A live tensor at the beginning of a large hole, and a request larger than the hole.
    fn pinned(wanted: u64) -> Trace {
        let alloc = |block, mib| Op::Alloc {
            block,
            requested: Bytes::mib(mib),
            stream: 0,
            pool: PoolId::SHARED,
        };
        Trace {
            ops: vec![
                Op::Seen(Seen::Reserved(Bytes::mib(600))),
                alloc(1, 600),
                Op::Free { block: 1 },
                Op::FreeCompleted { block: 1 },
                alloc(2, 30),
                Op::Refused {
                    requested: Bytes::mib(wanted),
                    stream: 0,
                    pool: PoolId::SHARED,
                    driver_free: Some(Bytes::mib(300)),
                },
                alloc(3, 1),
            ],
            recorded: Recorded {
                torch: Some((2, 8)),
                ..Recorded::default()
            },
            ..Trace::default()
        }
    }

    fn room(mib: u64) -> Room {
        Room {
            card: Bytes::mib(1000),
            outside: Bytes::mib(1000 - mib),
        }
    }

    fn fix(change: &str, effect: Option<&str>) -> Fix {
        Fix {
            change: change.to_owned(),
            kind: FixKind::Env,
            effect: effect.map(str::to_owned),
            ..Fix::default()
        }
    }

    fn incident() -> Incident {
        Incident {
            family: "oom".to_owned(),
            fixes: vec![
                fix(
                    "PYTORCH_CUDA_ALLOC_CONF=max_split_size_mb:256 python train.py",
                    None,
                ),
                fix("export OMP_NUM_THREADS=1", Some("less")),
                fix(
                    "PYTORCH_CUDA_ALLOC_CONF=backend:cudaMallocAsync python train.py",
                    None,
                ),
                fix(
                    "PYTORCH_CUDA_ALLOC_CONF=roundup_power2_divisions:8 python train.py",
                    None,
                ),
                fix(
                    "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True python train.py",
                    Some("torch 2.1 or later"),
                ),
            ],
            ..Incident::default()
        }
    }

    fn told(wanted: u64) -> Result<Vec<(String, Option<String>)>, String> {
        let trace = until(pinned(wanted), Bytes::mib(300)).expect("the failure");
        let mut incident = incident();
        assert!(has_settings(&incident));
        foretell(&mut incident, &trace, room(900))?;
        let fixes = incident.fixes.into_iter();
        Ok(fixes.map(|fix| (fix.change, fix.effect)).collect())
    }

    #[test]
    fn a_setting_that_would_have_saved_the_program_comes_first_with_its_figures() {
        let told = told(650).expect("something to tell");
        let effects: Vec<_> = told.iter().map(|(_, effect)| effect.as_deref()).collect();
        assert_eq!(
            effects,
            [
                // Large blocks stay whole: the small tensor gets a segment of its own.
                Some("replayed: fits, with a peak of 680.00 MiB reserved"),
                Some("replayed: fits, with a peak of 680.00 MiB reserved; torch 2.1 or later"),
                Some("less"),
                None,
                Some("replayed: fails at the same request"),
            ],
            "{told:?}"
        );
    }

    #[test]
    fn what_fits_under_no_setting_is_said_to() {
        let told = told(890).expect("something to tell");
        let fails = |change: &str| {
            let mut of = told.iter().filter(|(fix, _)| fix.contains(change));
            of.next().and_then(|(_, effect)| effect.clone())
        };
        let effect = fails("expandable_segments").expect("an effect");
        assert!(
            effect.starts_with("replayed: fails at the same request"),
            "{effect}"
        );
        // Where the program did not fail in the model, the model knows too little.
        let refused = told_of_endless();
        assert!(
            refused.contains("does not fail where the program did"),
            "{refused}"
        );
    }

    fn told_of_endless() -> String {
        let trace = until(pinned(650), Bytes::mib(300)).expect("the failure");
        let mut incident = incident();
        let before = incident.clone();
        let why = foretell(&mut incident, &trace, Room::ENDLESS).expect_err("nothing to tell");
        assert_eq!(incident, before);
        why
    }

    #[test]
    fn another_failure_than_the_one_that_is_explained_is_not_played() {
        assert_eq!(until(pinned(650), Bytes::mib(299)), None);
        assert_eq!(until(Trace::default(), Bytes(0)), None);
        let mut other = incident();
        other.fixes.truncate(3);
        other.fixes.remove(0);
        assert!(has_settings(&other));
        other.fixes.pop();
        assert!(!has_settings(&other));
    }
}
