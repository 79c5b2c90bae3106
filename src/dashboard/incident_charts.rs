//! Chart data for the minutes before an incident, stored with the incident's record.

use gputop_model::history::{GpuMetric, History, PoolMetric, ProcessMetric, SeriesKey};
use gputop_model::incident_record::{Record, Track};
use gputop_model::process::ProcessKey;
use gputop_model::units::{Millis, Mono};

/// Length of the stored chart data: ten minutes, in steps of two seconds.
const BEFORE: Millis = Millis(10 * 60_000);
const COLUMNS: usize = 300;

/// Returns the chart series for an incident's processes and GPU.
#[must_use]
pub fn tracks(history: &History, record: &Record) -> Vec<Track> {
    let mut keys: Vec<SeriesKey> = Vec::new();
    for process in record.processes() {
        keys.extend(of_process(history, process));
    }
    if let Some(gpu) = &record.key.gpu {
        let metrics = [
            GpuMetric::Used,
            GpuMetric::Sm,
            GpuMetric::Power,
            GpuMetric::Temperature,
            GpuMetric::SmClock,
        ];
        keys.extend(metrics.map(|metric| SeriesKey::Gpu(gpu.clone(), metric)));
    }
    let track = |key: SeriesKey| {
        let values = history.series(&key)?.window(record.key.first, BEFORE, COLUMNS);
        values.iter().any(Option::is_some).then(|| Track {
            series: key.to_string(),
            start: Mono(record.key.first.0.saturating_sub(BEFORE.0)),
            step: Millis(BEFORE.0 / COLUMNS as u64),
            values,
        })
    };
    keys.into_iter().filter_map(track).collect()
}

fn of_process(history: &History, process: ProcessKey) -> impl Iterator<Item = SeriesKey> {
    let own = [ProcessMetric::Cpu, ProcessMetric::Rss];
    let own = own.map(|metric| SeriesKey::Process(process, metric));
    let pools = history.pools_of(process).into_iter().flat_map(move |ordinal| {
        let metrics =
            [PoolMetric::Allocated, PoolMetric::Reserved, PoolMetric::Retries, PoolMetric::Ooms];
        metrics.map(|metric| SeriesKey::Pool(process, ordinal, metric))
    });
    own.into_iter().chain(pools)
}
