//! The doctor's line on the probe allocator: whether it would work, of each GPU. No context is created for it: a child
//! looks at the driver and ends.

use std::thread;

use super::Check;
use crate::cli::probe::frame;
use crate::collect::probe::{ProbeReadiness, readiness};
use crate::model::frame::Frame;
use crate::model::units::Bytes;

pub fn check_probe(has_driver: bool) -> Check {
    let seen = match has_driver {
        true => frame(None).map_err(|why| why.to_string()),
        false => Err("needs the NVIDIA driver".to_owned()),
    };
    let (works, found) = match seen {
        Ok(frame) => words(&outlooks(&frame)),
        Err(why) => (false, why),
    };
    Check {
        name: "probe (P)",
        works,
        found,
        fix: Vec::new(),
    }
}

/// Of each GPU by its index. A driver that starts takes its time: all at once.
fn outlooks(frame: &Frame) -> Vec<(u32, Result<ProbeReadiness, String>)> {
    thread::scope(|scope| {
        let looks: Vec<_> = frame
            .gpus
            .iter()
            .map(|gpu| (gpu.index, scope.spawn(|| readiness(&gpu.uuid, frame))))
            .collect();
        let answer = |(index, look): (u32, thread::ScopedJoinHandle<'_, _>)| {
            let broken = |_| Err("looking at it broke off".to_owned());
            (index, look.join().unwrap_or_else(broken))
        };
        looks.into_iter().map(answer).collect()
    })
}

fn words(outlooks: &[(u32, Result<ProbeReadiness, String>)]) -> (bool, String) {
    let good: Vec<&ProbeReadiness> = outlooks
        .iter()
        .filter_map(|(_, o)| o.as_ref().ok())
        .collect();
    let mut parts = Vec::new();
    if !good.is_empty() {
        let least: Option<Bytes> = good.iter().filter_map(|o| o.headroom).min();
        let leaves = least.map_or_else(String::new, |least| format!(", leaving {least} free"));
        parts.push(match (good.len(), outlooks.len()) {
            (1, 1) => format!("would work here{leaves}"),
            (all, of) if all == of => format!("would work on all {of} GPUs{leaves}"),
            (some, of) => format!("would work on {some} of {of} GPUs{leaves}"),
        });
    }
    // What is the same of several is said once.
    let mut said: Vec<(String, Vec<u32>)> = Vec::new();
    for (index, outlook) in outlooks {
        let clauses = match outlook {
            Err(why) => vec![why.clone()],
            Ok(outlook) => outlook
                .without
                .iter()
                .map(|(policy, why)| format!("not {}: {why}", policy.words()))
                .collect(),
        };
        for clause in clauses {
            match said.iter_mut().find(|(known, _)| *known == clause) {
                Some((_, of)) => of.push(*index),
                None => said.push((clause, vec![*index])),
            }
        }
    }
    parts.extend(said.into_iter().map(|(clause, of)| {
        if of.len() == outlooks.len() {
            return clause;
        }
        let of: Vec<String> = of.iter().map(u32::to_string).collect();
        format!("GPU {}: {clause}", of.join(", "))
    }));
    (!good.is_empty(), parts.join("; "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::probe::Policy;

    #[test]
    fn what_is_the_same_of_several_gpus_is_said_once() {
        let good = || ProbeReadiness {
            headroom: Some(Bytes::gib(2)),
            without: Vec::new(),
        };
        let old = ProbeReadiness {
            without: vec![(
                Policy::Pool,
                "driver or GPU does not support memory pools".into(),
            )],
            ..good()
        };
        assert_eq!(
            words(&[(0, Ok(good()))]),
            (true, "would work here, leaving 2.00 GiB free".into())
        );
        let full = || Err("0.20 GiB are free".to_owned());
        assert_eq!(
            words(&[(0, Ok(good())), (1, full()), (2, Ok(old)), (3, full())]).1,
            "would work on 2 of 4 GPUs, leaving 2.00 GiB free; GPU 1, 3: 0.20 GiB are free; \
             GPU 2: not stream-ordered pool: driver or GPU does not support memory pools"
        );
        assert_eq!(
            words(&[(0, full()), (1, full())]),
            (false, "0.20 GiB are free".into())
        );
    }
}
