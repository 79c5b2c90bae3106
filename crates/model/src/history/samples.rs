//! Extracts the values recorded in the history from a frame.

use std::borrow::Cow;

use super::key::{GpuMetric, HostMetric, PoolMetric, ProcessMetric, SeriesKey};
use super::tier::Span;
use crate::frame::Frame;
use crate::gpu::HealthState;
use crate::pool::Sampled;
use crate::units::{Millis, Mono};

/// Maximum age of a frame section, relative to the frame. An older section is ignored, because its collector has
/// probably hung.
const STALE: Millis = Millis(15_000);

/// Returns true if a frame section read at `at` is recent or has no time.
fn is_fresh(frame: &Frame, at: Mono) -> bool {
    let max_age = STALE.0.max(frame.interval.0.saturating_mul(3));
    at == Mono(0) || frame.mono.since(at).0 <= max_age
}

/// Passes every recorded value of a frame to `put_span`. Skips missing values, which appear as gaps.
pub fn samples(frame: &Frame, mut put_span: impl FnMut(SeriesKey, Span)) {
    pool_samples(frame, &mut put_span);
    let mut put = |key: SeriesKey, value: Option<f64>| {
        // Values from other machines may be any number, even NaN or infinity.
        if let Some(value) = value.filter(|v| v.is_finite()) {
            put_span(key, Span(value as f32, value as f32));
        }
    };
    if let Some(host) = frame.host.as_ref().filter(|host| is_fresh(frame, host.at)) {
        put(SeriesKey::Host(HostMetric::Cpu), host.cpu.get().map(|v| v.0));
        put(SeriesKey::Host(HostMetric::Memory), host.memory_used.get().map(|v| v.0 as f64));
    }
    for gpu in frame
        .gpus
        .iter()
        .filter(|gpu| gpu.health.state == HealthState::Answering && is_fresh(frame, gpu.at))
    {
        let key = |metric| SeriesKey::Gpu(gpu.uuid.clone(), metric);
        put(key(GpuMetric::Sm), gpu.sm.get().map(|v| v.0));
        put(key(GpuMetric::MemoryBandwidth), gpu.memory_bandwidth.get().map(|v| v.0));
        put(key(GpuMetric::Used), gpu.memory.taken().map(|v| v.0 as f64));
        put(key(GpuMetric::Power), gpu.power.get().map(|v| f64::from(v.0) / 1000.0));
        put(key(GpuMetric::Temperature), gpu.temperature.get().map(|v| f64::from(v.0)));
        put(key(GpuMetric::SmClock), gpu.sm_clock.get().map(|v| f64::from(v.0)));
        for process in gpu.processes.value().into_iter().flatten() {
            put(
                SeriesKey::Vram(process.key(), gpu.uuid.clone()),
                process.vram.get().map(|v| v.0 as f64),
            );
        }
    }
    let processes = frame.processes.iter().filter(|list| is_fresh(frame, list.at));
    for process in processes.flat_map(|processes| &*processes.list) {
        let key = |metric| SeriesKey::Process(process.key, metric);
        put(key(ProcessMetric::Cpu), process.cpu.get().map(|v| v.0));
        put(key(ProcessMetric::Rss), process.rss.get().map(|v| v.0 as f64));
    }
}

/// Passes pool statistics to `put` as spans of minimum and maximum. Pools are sampled more often than frames are sent,
/// so a span includes any peak between two frames.
fn pool_samples(frame: &Frame, put: &mut impl FnMut(SeriesKey, Span)) {
    let pools = frame.pools.iter().filter(|pools| is_fresh(frame, pools.at));
    for pool in pools.flat_map(|pools| pools.with_statistics()) {
        let key = |metric| SeriesKey::Pool(pool.process, pool.ordinal, metric);
        let span = |bytes: Sampled| {
            let (low, high) = (bytes.min().min(bytes.max()), bytes.max().max(bytes.min()));
            Span(low.0 as f32, high.0 as f32)
        };
        let count = |count: u64| Span(count as f32, count as f32);
        let stats = &pool.stats;
        put(key(PoolMetric::Allocated), span(stats.allocated));
        put(key(PoolMetric::Reserved), span(stats.reserved));
        // Only PyTorch counts these.
        if let Cow::Borrowed(_) = pool {
            put(key(PoolMetric::Retries), count(stats.num_alloc_retries));
            put(key(PoolMetric::Ooms), count(stats.num_ooms));
        }
    }
}
