//! Creates the metric rows of a limited number of processes and their pools.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::fmt;

use gputop_allocator::fits::{FitConditions, Fits, fragmented};
use gputop_model::pool_location::{gpu_of, gpu_of_reported};
use gputop_model::{Bytes, Frame, Gpu, HealthState, Pool, Reading, ReportedPool};

use super::{Families, Kind, Labels, gpu_label, is_fresh, with};

/// Value of the label `pid` for the sum of the processes without individual samples.
const OTHER: &str = "other";

/// Metric row: a process on a GPU, or one of its pools, with a value for each of `N` figures.
pub(super) struct Row<'a, const N: usize> {
    /// Labels that distinguish the rows of one process.
    place: Labels<'a>,
    pid: u32,
    /// True if this row is the sum of the processes beyond the limit.
    is_other: bool,
    /// Memory size by which processes are ranked, in bytes.
    bytes: Option<u64>,
    values: [Option<f64>; N],
}

pub(super) struct RowFigure {
    name: &'static str,
    kind: Kind,
    help: &'static str,
    /// True if the values of several processes can be added up. Counters cannot, because their sum would decrease when
    /// a process exits.
    is_additive: bool,
}

const fn gauge(name: &'static str, help: &'static str) -> RowFigure {
    RowFigure { name, kind: Kind::Gauge, help, is_additive: true }
}

const fn not_additive(kind: Kind, name: &'static str, help: &'static str) -> RowFigure {
    RowFigure { name, kind, help, is_additive: false }
}

/// Process figures in the order of the values from [`process_rows`].
pub(super) const PROCESS_FIGURES: [RowFigure; 2] = [
    gauge("gputop_process_memory_bytes", "GPU memory of the process as measured by the driver"),
    gauge("gputop_process_sm_ratio", "Share of the GPU's SM time used by the process"),
];

/// Pool figures in the order of the values from [`pool_row`].
pub(super) const POOL_FIGURES: [RowFigure; 8] = [
    gauge("gputop_pool_allocated_bytes", "Memory in live tensors"),
    gauge("gputop_pool_reserved_bytes", "Memory reserved from the driver by the allocator"),
    gauge("gputop_pool_cached_bytes", "Reserved memory without live tensors"),
    gauge("gputop_pool_fragmented_bytes", "Cached memory in segments with live tensors"),
    not_additive(Kind::Gauge, "gputop_pool_largest_free_bytes", "Largest free block"),
    not_additive(Kind::Gauge, "gputop_pool_fits_bytes", "Largest request that would succeed now"),
    not_additive(
        Kind::Counter,
        "gputop_pool_retries_total",
        "Number of times that the allocator flushed its cache",
    ),
    not_additive(Kind::Counter, "gputop_pool_ooms_total", "Requests that failed"),
];

/// Returns the PIDs of the `max` processes with the most memory.
pub(super) fn largest(processes: &[Row<'_, 2>], pools: &[Row<'_, 8>], max: usize) -> HashSet<u32> {
    let mut sizes: HashMap<u32, u64> = HashMap::new();
    for row in processes {
        let size = sizes.entry(row.pid).or_default();
        *size = size.saturating_add(row.bytes.unwrap_or(0));
    }
    for row in pools {
        let size = sizes.entry(row.pid).or_default();
        *size = (*size).max(row.bytes.unwrap_or(0));
    }
    let mut sizes: Vec<(u64, u32)> = sizes.into_iter().map(|(pid, size)| (size, pid)).collect();
    sizes.sort_unstable_by(|a, b| b.cmp(a));
    sizes.into_iter().take(max).map(|(_, pid)| pid).collect()
}

/// Adds up the rows of processes that are not in `shown`. Keeps only one of several rows with equal labels.
pub(super) fn summed<'a, const N: usize>(
    rows: Vec<Row<'a, N>>,
    shown: &HashSet<u32>,
    figures: &[RowFigure; N],
) -> Vec<Row<'a, N>> {
    let (mut own, mut others): (Vec<Row<'a, N>>, Vec<Row<'a, N>>) = (Vec::new(), Vec::new());
    for mut row in rows {
        if shown.contains(&row.pid) {
            if !own.iter().any(|other| other.pid == row.pid && other.place == row.place) {
                own.push(row);
            }
        } else if let Some(sum) = others.iter_mut().find(|other| other.place == row.place) {
            for (sum, value) in sum.values.iter_mut().zip(row.values) {
                *sum = sum.zip(value).map(|(sum, value)| sum + value).or(*sum).or(value);
            }
        } else {
            row.is_other = true;
            others.push(row);
        }
    }
    for row in &mut others {
        for (value, _) in
            row.values.iter_mut().zip(figures).filter(|(_, figure)| !figure.is_additive)
        {
            *value = None;
        }
    }
    own.append(&mut others);
    own
}

pub(super) fn write_rows<'a, const N: usize>(
    out: &mut Families<'_>,
    figures: &[RowFigure; N],
    rows: impl Iterator<Item = &'a Row<'a, N>> + Clone,
) -> fmt::Result {
    for (at, figure) in figures.iter().enumerate() {
        let values = rows.clone().filter_map(|row| {
            let pid =
                if row.is_other { Cow::Borrowed(OTHER) } else { Cow::Owned(row.pid.to_string()) };
            Some((with(&row.place, [("pid", pid)]), row.values[at]?))
        });
        out.write(figure.name, figure.kind, figure.help, values)?;
    }
    Ok(())
}

pub(super) fn process_rows<'a>(gpus: &[(Labels<'a>, &'a Gpu)]) -> Vec<Row<'a, 2>> {
    let rows = gpus.iter().flat_map(|(labels, gpu)| {
        let listed = gpu.processes.value().into_iter().flatten();
        listed.map(move |listed| {
            let instance = listed.gpu_instance;
            let instance = instance.map(|number| ("gpu_instance", number.to_string().into()));
            let memory = listed.vram.get();
            Row {
                place: with(labels, instance),
                pid: listed.pid.0,
                is_other: false,
                bytes: memory.map(|bytes| bytes.0),
                values: [
                    memory.map(|bytes| bytes.0 as f64),
                    listed.sm.get().map(|share| share.0 / 100.0),
                ],
            }
        })
    });
    rows.collect()
}

/// Returns the labels of a pool: its GPU, or the process's device number if the GPU is unknown.
fn pool_place<'a>(labels: &Labels<'a>, gpu: Option<&Gpu>, ordinal: u32) -> Labels<'a> {
    // Add the device number for a GPU in MIG mode, because a process may use several of its MIG instances.
    let is_unique = gpu.is_some_and(|gpu| gpu.mig.is_empty());
    let device = (!is_unique).then(|| ("device", ordinal.to_string().into()));
    with(labels, gpu.map(gpu_label).into_iter().chain(device))
}

pub(super) fn pool_rows<'a>(frame: &Frame, labels: &Labels<'a>) -> Vec<Row<'a, 8>> {
    let Some(pools) = &frame.pools else { return Vec::new() };
    let read = pools.list.iter().filter(|pool| is_fresh(frame, pool.at));
    let read = read.map(|pool| pool_row(frame, labels, pool));
    let reported = pools.reported.iter();
    read.chain(reported.map(|pool| reported_row(frame, labels, pool))).collect()
}

fn pool_row<'a>(frame: &Frame, labels: &Labels<'a>, pool: &Pool) -> Row<'a, 8> {
    let gpu = gpu_of(frame, pool);
    let stats = &pool.stats;
    let fits = fits(frame, gpu, pool);
    let bytes = |bytes: Bytes| bytes.0 as f64;
    Row {
        place: pool_place(labels, gpu, pool.ordinal),
        pid: pool.process.pid.0,
        is_other: false,
        bytes: Some(stats.reserved.last().0),
        values: [
            Some(bytes(stats.allocated.last())),
            Some(bytes(stats.reserved.last())),
            Some(bytes(stats.cached())),
            fragmented(stats).map(bytes),
            stats.largest_free_block.get().map(bytes),
            fits.map(bytes),
            Some(stats.num_alloc_retries as f64),
            Some(stats.num_ooms as f64),
        ],
    }
}

/// Returns the largest request that fits. Omits the figure if the GPU does not respond, because the amount of free memory
/// last read from the driver is then outdated.
fn fits(frame: &Frame, gpu: Option<&Gpu>, pool: &Pool) -> Option<Bytes> {
    let gpu = gpu.filter(|gpu| gpu.health.state == HealthState::Answering)?;
    let conditions = FitConditions::of(frame.process(pool.process), pool, Some(gpu));
    Fits::of_pool(pool, &conditions).largest()
}

fn reported_row<'a>(frame: &Frame, labels: &Labels<'a>, pool: &ReportedPool) -> Row<'a, 8> {
    let gpu = gpu_of_reported(frame, pool);
    let place = pool_place(labels, gpu, pool.ordinal);
    let bfc = pool.to_pool().filter(|pool| pool.allocator.is_bfc());
    let fits = bfc.and_then(|pool| fits(frame, gpu, &pool)).map(|fits| fits.0 as f64);
    let framework = ("framework", pool.framework.words().into());
    let bytes = |reading: &Reading<Bytes>| reading.get().map(|bytes| bytes.0 as f64);
    let (allocated, reserved) = (bytes(&pool.allocated), bytes(&pool.reserved));
    let largest = bytes(&pool.largest_free_block);
    Row {
        place: with(&place, [framework]),
        pid: pool.process.pid.0,
        is_other: false,
        bytes: pool.reserved.get().or(pool.allocated.get()).map(|b| b.0),
        values: [allocated, reserved, bytes(&pool.cached()), None, largest, fits, None, None],
    }
}
