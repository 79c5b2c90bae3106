//! Checks for each GPU whether `gputop probe` would work. A child process queries the driver without creating a CUDA
//! context.

use std::thread;

use gputop_model::{Bytes, Frame};

use crate::cli::doctor::check::Check;
use crate::cli::probe::frame;
use crate::collect::probe::{ProbeReadiness, readiness};

pub fn check_probe(has_driver: bool) -> Check {
    let frame = if has_driver {
        frame(None).map_err(|why| why.to_string())
    } else {
        Err("requires the NVIDIA driver and a GPU that is awake".to_owned())
    };
    let (works, found) = match frame {
        Ok(frame) => summary(&readiness_by_gpu(&frame)),
        Err(why) => (false, why),
    };
    Check::new("probe (P)", works, found, "")
}

/// Checks all GPUs in parallel, because the driver may start slowly. Returns each GPU's index and whether it can be
/// probed.
fn readiness_by_gpu(frame: &Frame) -> Vec<(u32, Result<ProbeReadiness, String>)> {
    thread::scope(|scope| {
        let checks: Vec<_> = frame
            .gpus
            .iter()
            .map(|gpu| (gpu.index, scope.spawn(|| readiness(&gpu.uuid, frame))))
            .collect();
        let result = |(index, check): (u32, thread::ScopedJoinHandle<'_, _>)| {
            let panicked = |_| Err("the check failed unexpectedly".to_owned());
            (index, check.join().unwrap_or_else(panicked))
        };
        checks.into_iter().map(result).collect()
    })
}

fn summary(gpus: &[(u32, Result<ProbeReadiness, String>)]) -> (bool, String) {
    let ready: Vec<&ProbeReadiness> =
        gpus.iter().filter_map(|(_, readiness)| readiness.as_ref().ok()).collect();
    let mut parts = Vec::new();
    if !ready.is_empty() {
        let min: Option<Bytes> = ready.iter().filter_map(|gpu| gpu.headroom).min();
        let leaves = min.map_or_else(String::new, |min| format!(", leaves {min} free"));
        parts.push(match (ready.len(), gpus.len()) {
            (1, 1) => format!("available{leaves}"),
            (some, all) if some == all => format!("available on all {all} GPUs{leaves}"),
            (some, all) => format!("available on {some} of {all} GPUs{leaves}"),
        });
    }
    // Print a reason that applies to several GPUs only once.
    let mut clauses: Vec<(String, Vec<u32>)> = Vec::new();
    for (index, readiness) in gpus {
        let new = match readiness {
            Err(why) => vec![why.clone()],
            Ok(readiness) => readiness
                .without
                .iter()
                .map(|(policy, why)| format!("no {}: {why}", policy.words()))
                .collect(),
        };
        for clause in new {
            match clauses.iter_mut().find(|(known, _)| *known == clause) {
                Some((_, indices)) => indices.push(*index),
                None => clauses.push((clause, vec![*index])),
            }
        }
    }
    parts.extend(clauses.into_iter().map(|(clause, indices)| {
        if indices.len() == gpus.len() {
            return clause;
        }
        let indices: Vec<String> = indices.iter().map(u32::to_string).collect();
        format!("GPU {}: {clause}", indices.join(", "))
    }));
    (!ready.is_empty(), parts.join("; "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use gputop_model::probe::Policy;

    #[test]
    fn prints_clauses_that_apply_to_several_gpus_once() {
        let ready = || ProbeReadiness { headroom: Some(Bytes::gib(2)), without: Vec::new() };
        let old = ProbeReadiness {
            without: vec![(Policy::Pool, "driver or GPU does not support memory pools".into())],
            ..ready()
        };
        assert_eq!(summary(&[(0, Ok(ready()))]), (true, "available, leaves 2.00 GiB free".into()));
        let full = || Err("0.20 GiB is free".to_owned());
        assert_eq!(
            summary(&[(0, Ok(ready())), (1, full()), (2, Ok(old)), (3, full())]).1,
            "available on 2 of 4 GPUs, leaves 2.00 GiB free; GPU 1, 3: 0.20 GiB is free; \
             GPU 2: no stream-ordered pool: driver or GPU does not support memory pools"
        );
        assert_eq!(summary(&[(0, full()), (1, full())]), (false, "0.20 GiB is free".into()));
    }
}
