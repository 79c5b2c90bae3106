use super::*;

const GIB: f64 = (1_u64 << 30) as f64;

fn bytes(gib: f64) -> Bytes {
    Bytes((gib * GIB) as u64)
}

/// Returns one sample per second for a GPU with 24 GiB. `values` returns (minimum, maximum, reserved) in GiB.
fn series(seconds: u64, values: impl Fn(u64) -> (f64, f64, f64)) -> Vec<Sample> {
    (0..seconds)
        .map(|second| {
            let (low, high, reserved) = values(second);
            Sample {
                at: Mono(1_000_000 + second * 1_000),
                allocated: (bytes(low), bytes(high)),
                reserved: bytes(reserved),
                driver_free: Some(bytes(24.0 - reserved)),
                ..Sample::default()
            }
        })
        .collect()
}

fn kinds(samples: &[Sample]) -> Vec<NoteKind> {
    notes(samples).into_iter().map(|note| note.kind).collect()
}

/// Training: memory rises from the parameters to the peak of the backward pass and falls again, every second.
fn training(_: u64) -> (f64, f64, f64) {
    (6.0, 18.0, 20.0)
}

#[test]
fn healthy_training_causes_no_notes() {
    assert_eq!(kinds(&series(600, training)), []);
    assert_eq!(kinds(&[]), []);
    assert_eq!(kinds(&series(1, training)), []);
}

#[test]
fn an_evaluation_spike_causes_no_notes_during_and_after_it() {
    let spike = |s| match s {
        300..=420 => (9.0, 22.5, 23.5),
        421.. => (6.0, 18.0, 23.5),
        _ => training(s),
    };
    for end in [310, 350, 421, 450, 599] {
        assert_eq!(kinds(&series(end, spike)), [], "after {end} s");
    }
}

#[test]
fn checkpoints_cause_no_notes() {
    let saving = |s: u64| match s % 100 {
        90..=99 => (6.0, 6.0, 20.0),
        _ => training(s),
    };
    assert_eq!(kinds(&series(600, saving)), []);
}

#[test]
fn loading_a_model_causes_no_notes() {
    let loading = |s: u64| {
        let at = s as f64 / 30.0;
        (at, at, at + 0.5)
    };
    assert_eq!(kinds(&series(600, loading)), []);
}

#[test]
fn a_reset_of_counters_causes_no_notes() {
    let mut samples = series(600, training);
    for sample in &mut samples[..300] {
        (sample.retries, sample.ooms) = (5, 2);
    }
    assert_eq!(kinds(&samples), []);
}

#[test]
fn notes_a_flush_with_its_count() {
    let mut samples = series(600, training);
    samples[200..].iter_mut().for_each(|s| s.retries = 2);
    samples[400..].iter_mut().for_each(|s| s.retries = 3);
    let notes = notes(&samples);
    assert_eq!(notes.len(), 1);
    assert_eq!(notes[0].since, samples[200].at);
    assert_eq!(notes[0].text, "the cache was flushed 3 times to make room (num_alloc_retries 3)");
}

#[test]
fn counts_an_increase_after_a_reset_from_the_reset() {
    let mut samples = series(60, training);
    samples[..30].iter_mut().for_each(|s| s.ooms = 7);
    samples[40..].iter_mut().for_each(|s| s.ooms = 1);
    let notes = notes(&samples);
    assert_eq!(notes[0].kind, NoteKind::OomCaught);
    assert_eq!(notes[0].text, "out of memory once, and the program continued (num_ooms 1)");
}

#[test]
fn notes_an_unused_cache_that_fills_the_gpu() {
    let samples = series(300, |s| if s < 100 { training(s) } else { (6.0, 18.0, 23.5) });
    let notes = notes(&samples);
    assert_eq!(notes.len(), 1);
    assert_eq!(notes[0].kind, NoteKind::CacheFillsGpu);
    assert_eq!(notes[0].since, samples[100].at);
    assert_eq!(
        notes[0].text,
        "23.50 GiB reserved, 0.50 free on the GPU, and tensors never used more than 18.00"
    );
    // Give no warning while tensor memory still grows, because the tensors will use the cache.
    let growing = series(300, |s| (6.0, 15.0 + s as f64 / 100.0, 23.5));
    assert_eq!(kinds(&growing), []);
}

#[test]
fn notes_a_leak_at_every_step_with_its_rate() {
    let leaking = |s: u64| {
        let leaked = s as f64 * 0.004;
        (6.0 + leaked, 16.0 + leaked, 20.0)
    };
    assert_eq!(kinds(&series(200, leaking)), [], "too soon to tell");
    let samples = series(420, leaking);
    let notes = notes(&samples);
    assert_eq!(notes.len(), 1, "{notes:?}");
    assert_eq!(notes[0].kind, NoteKind::MemoryGrowing);
    assert_eq!(
        notes[0].text,
        "lowest allocated memory rose from 6.00 to 7.36 GiB, 246M per minute: each step retains memory"
    );
}

#[test]
fn notes_a_leak_with_steps_longer_than_a_window() {
    let slow = |s: u64| {
        let retained = 6.0 + (s / 25) as f64 * 0.1;
        if s % 25 < 12 {
            (retained, retained + 2.0, 20.0)
        } else {
            (retained + 8.0, retained + 10.0, 20.0)
        }
    };
    assert_eq!(kinds(&series(600, slow)), [NoteKind::MemoryGrowing]);
}

fn watched(samples: impl IntoIterator<Item = Sample>) -> PoolSamples {
    let mut pool = PoolSamples::default();
    samples.into_iter().for_each(|sample| pool.push(sample));
    pool
}

#[test]
fn forgets_old_samples_and_restarts_when_time_jumps_back() {
    let failing = series(2_000, training)
        .into_iter()
        .map(|sample| Sample { ooms: u64::from(sample.at > Mono(1_100_000)), ..sample });
    let mut pool = watched(failing.clone().take(600));
    assert_eq!(pool.notes()[0].kind, NoteKind::OomCaught);
    pool = watched(failing);
    let samples = pool.samples();
    let length = samples[samples.len() - 1].at.since(samples[0].at);
    assert!((590_000..=600_000).contains(&length.0), "{length:?}");
    assert_eq!(pool.notes(), []);
    pool.push(series(1, training)[0]);
    assert_eq!(pool.samples.len(), 1);
}

#[test]
fn memory_is_bounded_at_any_rate_and_duration() {
    assert_eq!(size_of::<Packed>(), 32);
    let frequent = series(3_000, training).into_iter().flat_map(|sample| {
        let later = |millis| Sample { at: Mono(sample.at.0 + millis), ..sample };
        [sample, later(300), later(600)]
    });
    let mut pool = PoolSamples::default();
    for sample in frequent {
        pool.push(sample);
        assert!(pool.samples.capacity() <= MAX_SAMPLES);
    }
}

/// Resolution decreases the longer a pool is watched, but always suffices for the rules.
#[test]
fn merging_samples_loses_no_extreme_and_no_increase() {
    for seconds in [30_u64, 63, 64, 65, 127, 128, 200, 319, 321, 599] {
        let spike = seconds / 3;
        let mut samples =
            series(
                seconds,
                |second| if second == spike { (2.0, 22.0, 23.0) } else { training(second) },
            );
        samples[(seconds / 2) as usize..].iter_mut().for_each(|sample| sample.retries = 3);
        let merged = watched(samples.iter().copied()).samples();
        let extremes = |samples: &[Sample]| {
            let low = samples.iter().map(|sample| sample.allocated.0).min();
            let high = samples.iter().map(|sample| sample.allocated.1).max();
            low.zip(high)
        };
        assert_eq!(extremes(&merged), extremes(&samples), "{seconds} s");
        assert!(merged.len() as u64 >= (seconds / 10).max(seconds.min(26)));
        let count =
            |samples: &[Sample]| increase(samples, |s| s.retries).map(|(_, count, _)| count);
        assert_eq!(count(&merged), Some(3), "{seconds} s");
        let has_fallen = |samples: &[Sample]| before_failure(samples, false).has_fallen;
        assert_eq!(has_fallen(&merged), has_fallen(&samples), "{seconds} s");
    }
}

#[test]
fn merged_samples_cause_the_same_notes_as_all_samples() {
    let leaking = |s: u64| {
        let leaked = s as f64 * 0.004;
        (6.0 + leaked, 16.0 + leaked, 20.0)
    };
    let full = |s| match s {
        ..100 => training(s),
        _ => (6.0, 18.0, 23.5),
    };
    for seconds in [200, 260, 300, 420, 599] {
        let samples = [series(seconds, leaking), series(seconds, full)];
        for samples in samples {
            let pool = watched(samples.iter().copied());
            let merged: Vec<_> = pool.notes().iter().map(|note| note.kind).collect();
            assert_eq!(merged, kinds(&samples), "{seconds} s");
        }
    }
}
