//! Converts frames to metrics for Prometheus, in OpenMetrics and in the older text format.
//!
//! A missing value has no sample and is never written as 0. The values of a GPU that does not respond, and of a host
//! that sends no frames, are missing too; the label `state` of `gputop_gpu_up` and `gputop_up` gives the reason.
//!
//! GPU metrics have the names and units of NVIDIA's DCGM. Process and pool metrics have few labels. The labels that
//! describe a process are only on `gputop_process_info`, and queries join them by `pid`.

mod labels;
mod rows;

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use gputop_explain::ranks::{JobReport, MIN_ARRIVALS, RankRow, RankState, Verdict};
use gputop_model::accounting::account;
use gputop_model::gpu::{GPU_FIGURES, Value};
use gputop_model::phases::{PhaseCount, PhaseWindow};
use gputop_model::process_group::{GroupArrivals, LastArrivals};
use gputop_model::text::visible;
use gputop_model::{Bytes, Frame, Gpu, HealthState, Memory, Millis, Mono, Process, Reading};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::{encode_eof, encode_registry};
use prometheus_client::encoding::{
    DescriptorEncoder, EncodeGaugeValue, GaugeValueEncoder, NoLabelSet,
};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Registry;

pub use self::labels::{PROCESS_LABELS, ProcessLabel};
use self::rows::{
    POOL_FIGURES, PROCESS_FIGURES, Row, largest, pool_rows, process_rows, summed, write_rows,
};

/// Value of `gputop_gpu_up` for a GPU that need not respond, so that `gputop_gpu_up == 0` finds only failures.
const NOT_ASKED: f64 = -1.0;
const MAX_LABEL_CHARS: usize = 64;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// OpenMetrics 1.0.
    OpenMetrics,
    /// Prometheus text format 0.0.4, required by the textfile collector of the node exporter.
    Text,
}

impl Format {
    pub fn content_type(self) -> &'static str {
        match self {
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Self::Text => "text/plain; version=0.0.4; charset=utf-8",
        }
    }
}

#[derive(Debug, Clone)]
pub struct Options {
    pub labels: Vec<&'static ProcessLabel>,
    /// Maximum number of processes per host with individual samples.
    pub max_processes: usize,
}

gputop_model::named! {
    /// Connection state of a host, shown in the label `state` of `gputop_up`.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
    pub enum HostState {
        Up = "up",
        /// No frame has arrived yet from the host.
        #[default]
        Waiting = "waiting",
        /// The driver of the host works, but lists no GPU.
        NoGpus = "no_gpus",
        /// The driver of the host is not loaded, or does not work.
        NoDriver = "no_driver",
        /// No frame has arrived from the host for several intervals.
        Stale = "stale",
        Disconnected = "disconnected",
    }
    fn word;
}

/// Incidents of one host that are explained by the same card.
#[derive(Debug, Clone, PartialEq)]
pub struct IncidentCount {
    pub card: String,
    pub severity: &'static str,
    pub count: u64,
    /// Time of the latest incident in seconds since 1970.
    pub last: f64,
}

#[derive(Debug, Clone)]
pub struct HostMetrics {
    /// Value of the label `host`, or `None` if there are no remote hosts.
    pub name: Option<String>,
    pub state: HostState,
    /// Latest frame of the host. Its values are used only in the state [`HostState::Up`].
    pub frame: Option<Arc<Frame>>,
    /// Distributed jobs with ranks on the host.
    pub jobs: Vec<JobReport>,
    /// Which ranks come last to collectives. Empty if PyTorch's flight recorder is off.
    pub arrivals: Arc<Vec<GroupArrivals>>,
    /// Phases of the processes on underused GPUs.
    pub phases: Vec<Arc<PhaseWindow>>,
    pub incidents: Vec<IncidentCount>,
}

pub fn text(hosts: Vec<HostMetrics>, options: &Options, format: Format) -> String {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(Exposition { hosts, options: options.clone(), format }));
    let mut text = String::new();
    // Writing to a string cannot fail.
    let _ = encode_registry(&mut text, &registry);
    if format == Format::OpenMetrics {
        let _ = encode_eof(&mut text);
    }
    text
}

#[derive(Debug)]
struct Exposition {
    hosts: Vec<HostMetrics>,
    options: Options,
    format: Format,
}

impl Collector for Exposition {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut out = Families { encoder, format: self.format };
        write_health(&mut out, &self.hosts)?;
        let hosts: Vec<HostRows<'_>> =
            self.hosts.iter().filter_map(|host| HostRows::new(host, &self.options)).collect();
        write_gpus(&mut out, &hosts)?;
        let processes = hosts.iter().flat_map(|host| &host.processes);
        write_rows(&mut out, &PROCESS_FIGURES, processes)?;
        write_process_info(&mut out, &hosts, &self.options.labels)?;
        let pools = hosts.iter().flat_map(|host| &host.pools);
        write_rows(&mut out, &POOL_FIGURES, pools)?;
        write_ranks(&mut out, &hosts)?;
        write_arrivals(&mut out, &hosts)?;
        write_phases(&mut out, &hosts)?;
        write_unreadable(&mut out, &hosts)?;
        write_incidents(&mut out, &self.hosts)
    }
}

type Labels<'a> = Vec<(&'static str, Cow<'a, str>)>;

/// A metric value, written without a decimal point if it is whole.
#[derive(Debug, Clone, Copy)]
struct Number(f64);

impl EncodeGaugeValue for Number {
    fn encode(&self, encoder: &mut GaugeValueEncoder<'_>) -> fmt::Result {
        // Whole numbers up to 2^53 are exact.
        if self.0.fract() == 0.0 && self.0.abs() < 9.0e15 {
            (self.0 as i64).encode(encoder)
        } else {
            self.0.encode(encoder)
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Gauge,
    Counter,
}

struct Families<'a> {
    encoder: DescriptorEncoder<'a>,
    format: Format,
}

impl Families<'_> {
    /// Writes the samples of one metric family, or nothing if there are none. The name of a counter ends with `_total`.
    fn write<'l>(
        &mut self,
        name: &str,
        kind: Kind,
        help: &str,
        samples: impl IntoIterator<Item = (Labels<'l>, f64)>,
    ) -> fmt::Result {
        let mut samples = samples.into_iter().peekable();
        if samples.peek().is_none() {
            return Ok(());
        }
        let is_suffixed = kind == Kind::Counter && self.format == Format::OpenMetrics;
        // Remove the suffix for OpenMetrics, which names the family without it. The older format keeps the suffix.
        let family = match name.strip_suffix("_total") {
            Some(stem) if is_suffixed => stem,
            _ => name,
        };
        let metric_type = match kind {
            Kind::Gauge => MetricType::Gauge,
            Kind::Counter => MetricType::Counter,
        };
        let mut encoder = self.encoder.encode_descriptor(family, help, None, metric_type)?;
        for (labels, value) in samples {
            let mut sample = encoder.encode_family(&labels)?;
            if is_suffixed {
                sample.encode_counter::<NoLabelSet, _, f64>(&(value as u64), None)?;
            } else {
                sample.encode_gauge(&Number(value))?;
            }
        }
        Ok(())
    }

    fn gauge<'l>(
        &mut self,
        name: &str,
        help: &str,
        samples: impl IntoIterator<Item = (Labels<'l>, f64)>,
    ) -> fmt::Result {
        self.write(name, Kind::Gauge, help, samples)
    }
}

/// Returns a label's value, escaped and limited in length. The text may come from another user or host.
fn label(value: &str) -> Cow<'_, str> {
    let is_plain =
        value.len() <= MAX_LABEL_CHARS && value.bytes().all(|b| (b' '..0x7f).contains(&b));
    if is_plain {
        Cow::Borrowed(value)
    } else {
        Cow::Owned(visible(value.as_bytes(), MAX_LABEL_CHARS))
    }
}

fn with<'a>(
    labels: &Labels<'a>,
    more: impl IntoIterator<Item = (&'static str, Cow<'a, str>)>,
) -> Labels<'a> {
    labels.iter().cloned().chain(more).collect()
}

fn host_labels(name: Option<&String>) -> Labels<'_> {
    name.map(|name| ("host", label(name))).into_iter().collect()
}

struct HostRows<'a> {
    labels: Labels<'a>,
    frame: &'a Frame,
    jobs: &'a [JobReport],
    arrivals: &'a [GroupArrivals],
    phases: &'a [Arc<PhaseWindow>],
    /// Responding GPUs with their labels.
    gpus: Vec<(Labels<'a>, &'a Gpu)>,
    processes: Vec<Row<'a, 2>>,
    pools: Vec<Row<'a, 8>>,
    /// Processes with individual samples, in the order of the frame.
    described: Vec<&'a Process>,
}

impl<'a> HostRows<'a> {
    fn new(host: &'a HostMetrics, options: &Options) -> Option<Self> {
        let frame = host.frame.as_deref()?;
        if host.state != HostState::Up {
            return None;
        }
        let labels = host_labels(host.name.as_ref());
        let gpus: Vec<(Labels<'a>, &Gpu)> = frame
            .gpus
            .iter()
            .filter(|gpu| gpu.health.state == HealthState::Answering)
            .map(|gpu| (with(&labels, [gpu_label(gpu)]), gpu))
            .collect();
        let pools = pool_rows(frame, &labels);
        let processes = process_rows(&gpus);
        let shown = largest(&processes, &pools, options.max_processes);
        let list = frame.processes.iter().flat_map(|list| &*list.list);
        let described = list.filter(|process| shown.contains(&process.key.pid.0)).collect();
        Some(Self {
            processes: summed(processes, &shown, &PROCESS_FIGURES),
            pools: summed(pools, &shown, &POOL_FIGURES),
            labels,
            frame,
            jobs: &host.jobs,
            arrivals: &host.arrivals,
            phases: &host.phases,
            gpus,
            described,
        })
    }
}

/// Returns true if `at` is within the last two intervals. `at` is the time at which a part of the frame was read.
fn is_fresh(frame: &Frame, at: Mono) -> bool {
    frame.mono.since(at) <= Millis(frame.interval.0.saturating_mul(2).saturating_add(500))
}

fn gpu_label<'a>(gpu: &Gpu) -> (&'static str, Cow<'a, str>) {
    ("gpu", gpu.index.to_string().into())
}

fn write_health(out: &mut Families<'_>, hosts: &[HostMetrics]) -> fmt::Result {
    let version = ("version", Cow::Borrowed(env!("CARGO_PKG_VERSION")));
    out.gauge("gputop_build_info", "Version of the exporter", [(vec![version], 1.0)])?;
    out.gauge(
        "gputop_up",
        "1 if the host sends GPU data; if 0, the label state gives the reason",
        hosts.iter().map(|host| {
            let state = ("state", host.state.word().into());
            let is_up = host.state == HostState::Up;
            (with(&host_labels(host.name.as_ref()), [state]), f64::from(u8::from(is_up)))
        }),
    )?;
    let frames = hosts.iter().filter_map(|host| {
        let time = host.frame.as_deref()?.time.0;
        Some((host_labels(host.name.as_ref()), time as f64 / 1_000.0))
    });
    out.gauge("gputop_frame_timestamp_seconds", "Time of the latest frame", frames)?;
    let gpus = hosts.iter().filter(|host| host.state == HostState::Up).flat_map(|host| {
        host.frame.iter().flat_map(|frame| &frame.gpus).map(|gpu| {
            let (state, is_up) = match gpu.health.state {
                HealthState::Answering if gpu.why_no_figures().is_some() => ("unreadable", 0.0),
                HealthState::Answering => ("answering", 1.0),
                HealthState::Silent => ("silent", 0.0),
                HealthState::Lost => ("lost", 0.0),
                HealthState::Asleep => ("asleep", NOT_ASKED),
                HealthState::Denied => ("not_yours", NOT_ASKED),
                HealthState::Unknown => ("unknown", 0.0),
            };
            let own = [gpu_label(gpu), ("state", state.into())];
            (with(&host_labels(host.name.as_ref()), own), is_up)
        })
    });
    out.gauge(
        "gputop_gpu_up",
        "1 if the GPU responds, 0 if it fails to, -1 if it is asleep or not yours; the label state gives the reason",
        gpus,
    )
}

fn write_info(out: &mut Families<'_>, hosts: &[HostRows<'_>]) -> fmt::Result {
    let drivers = hosts.iter().filter_map(|host| {
        let driver = host.frame.driver.as_ref()?;
        let version = |name, version: &'_ Reading<String>| {
            let version = version.value()?.clone();
            Some((name, Cow::Owned(visible(version.as_bytes(), MAX_LABEL_CHARS))))
        };
        let versions = [version("version", &driver.version), version("cuda", &driver.cuda)];
        Some((with(&host.labels, versions.into_iter().flatten()), 1.0))
    });
    out.gauge("gputop_driver_info", "Versions of the driver", drivers)?;
    let info = hosts.iter().flat_map(|host| &host.gpus).map(|(labels, gpu)| {
        let own = [("UUID", label(&gpu.uuid.0)), ("model", label(&gpu.name))];
        let texts = GPU_FIGURES.iter().filter_map(|figure| {
            let Ok(Value::Text(text)) = figure.field.read(gpu) else { return None };
            Some((figure.name, label(text)))
        });
        (with(labels, own.into_iter().chain(texts)), 1.0)
    });
    out.gauge("gputop_gpu_info", "Identity of the GPU", info)
}

fn write_gpus(out: &mut Families<'_>, hosts: &[HostRows<'_>]) -> fmt::Result {
    let gpus = || hosts.iter().flat_map(|host| &host.gpus);
    write_info(out, hosts)?;
    for figure in GPU_FIGURES {
        let Some(name) = figure.dcgm else { continue };
        let values = gpus().filter_map(|(labels, gpu)| {
            let value = figure.field.read(gpu).ok()?.dcgm_number()?;
            Some((labels.clone(), value))
        });
        let help = format!("GPU {}{}", figure.label(), figure.dcgm_unit());
        out.gauge(name, &help, values)?;
    }
    let reasons = gpus().flat_map(|(labels, gpu)| {
        let reasons = gpu.throttle.value().into_iter().flatten();
        let mut words: Vec<&str> = reasons.map(|reason| reason.words()).collect();
        words.sort_unstable();
        words.dedup();
        let row = |word| (with(labels, [("reason", Cow::Borrowed(word))]), 1.0);
        words.into_iter().map(row).collect::<Vec<_>>()
    });
    out.gauge(
        "gputop_gpu_throttle",
        "1 for each reason that currently reduces the clocks",
        reasons,
    )?;
    let unattributed = gpus().filter_map(|(labels, gpu)| {
        let parts = account(gpu).filter(|parts| !parts.processes_unknown)?;
        Some((labels.clone(), parts.unattributed.0 as f64))
    });
    out.gauge(
        "gputop_gpu_unattributed_bytes",
        "Used memory that does not belong to any listed process",
        unattributed,
    )?;
    write_mig(out, hosts)
}

fn write_mig(out: &mut Families<'_>, hosts: &[HostRows<'_>]) -> fmt::Result {
    type Part = fn(&Memory) -> &Reading<Bytes>;
    let parts: [(&str, &str, Part); 3] = [
        ("gputop_mig_memory_total_bytes", "Memory of the MIG instance", |memory| &memory.total),
        ("gputop_mig_memory_used_bytes", "Used memory of the MIG instance", |memory| &memory.used),
        ("gputop_mig_memory_free_bytes", "Free memory of the MIG instance", |memory| &memory.free),
    ];
    for (name, help, part) in parts {
        let values = hosts.iter().flat_map(|host| &host.gpus).flat_map(|(labels, gpu)| {
            let values = gpu.mig.iter().filter_map(|mig| {
                let profile = mig.profile.value().map(|profile| ("profile", label(profile)));
                let own = [("mig", mig.index.to_string().into())];
                let parts = [
                    ("gpu_instance", mig.gpu_instance.get()),
                    ("compute_instance", mig.compute_instance.get()),
                ];
                let parts = parts
                    .into_iter()
                    .filter_map(|(name, part)| Some((name, part?.to_string().into())));
                let labels = with(labels, own.into_iter().chain(parts).chain(profile));
                Some((labels, part(&mig.memory).get()?.0 as f64))
            });
            values.collect::<Vec<_>>()
        });
        out.gauge(name, help, values)?;
    }
    Ok(())
}

fn write_process_info(
    out: &mut Families<'_>,
    hosts: &[HostRows<'_>],
    labels: &[&ProcessLabel],
) -> fmt::Result {
    let info = hosts.iter().flat_map(|host| {
        host.described.iter().map(|process| {
            let labels = labels.iter().filter_map(|label| {
                let value = (label.value)(process)?;
                Some((label.name, visible(value.as_bytes(), MAX_LABEL_CHARS).into()))
            });
            let pid = ("pid", process.key.pid.to_string().into());
            (with(&host.labels, [pid].into_iter().chain(labels)), 1.0)
        })
    });
    out.gauge("gputop_process_info", "Description of the process", info)
}

/// Writes how long each rank has waited for others, and others for it. A rank that cannot be read has no sample.
fn write_ranks(out: &mut Families<'_>, hosts: &[HostRows<'_>]) -> fmt::Result {
    let seconds = |time: Millis| time.0 as f64 / 1_000.0;
    let rows = |value: fn(&JobReport, &RankRow) -> Option<Millis>| {
        hosts.iter().flat_map(move |host| {
            let of_job = move |job: &JobReport| {
                let rows = job.ranks.iter().filter_map(move |row| {
                    let labels = [
                        ("pid", row.process.pid.to_string().into()),
                        ("rank", row.rank.to_string().into()),
                    ];
                    Some((with(&host.labels, labels), seconds(value(job, row)?)))
                });
                rows.collect::<Vec<_>>()
            };
            host.jobs.iter().flat_map(of_job)
        })
    };
    let waited = |_: &JobReport, row: &RankRow| match &row.state {
        RankState::Waits { waited, .. } => *waited,
        RankState::Runs | RankState::HoldsUp | RankState::InsideNccl => Some(Millis(0)),
        _ => None,
    };
    let stalled = |job: &JobReport, row: &RankRow| {
        let is_named = |verdict: &&Verdict| verdict.culprits.contains(&row.rank);
        let waits = matches!(row.state, RankState::Waits { .. });
        let verdict = job.verdicts.iter().find(is_named).filter(|_| !waits);
        match (&row.state, verdict) {
            (_, Some(verdict)) => Some(verdict.waited),
            (RankState::Runs | RankState::Waits { .. }, None) => Some(Millis(0)),
            _ => None,
        }
    };
    out.gauge(
        "gputop_rank_wait_seconds",
        "Time that the rank has waited in a collective for others, beyond what is usual in its job",
        rows(waited),
    )?;
    out.gauge(
        "gputop_rank_holds_up_seconds",
        "Time that other ranks have waited for this rank",
        rows(stalled),
    )
}

/// Writes how often and how late each rank comes last to the collectives of its largest group, among the ranks on its
/// host. A rank without enough recorded collectives has no samples.
fn write_arrivals(out: &mut Families<'_>, hosts: &[HostRows<'_>]) -> fmt::Result {
    let rows = |value: fn(&GroupArrivals, &LastArrivals) -> Option<f64>| {
        hosts.iter().flat_map(move |host| {
            let of_job = move |job: &'_ JobReport| {
                let is_known = |group: &&GroupArrivals| {
                    group.collectives >= MIN_ARRIVALS
                        && group.ranks.len() > 1
                        && group.store.as_deref() == job.job.store.as_deref()
                };
                let groups: Vec<&GroupArrivals> = host.arrivals.iter().filter(is_known).collect();
                let rows = job.ranks.iter().filter_map(|row| {
                    let own = groups.iter().filter(|group| group.ranks.contains(&row.rank));
                    let group = own.max_by_key(|group| (group.size, &group.group))?;
                    let last = group.last.iter().find(|last| last.rank == row.rank);
                    let labels = [
                        ("pid", row.process.pid.to_string().into()),
                        ("rank", row.rank.to_string().into()),
                        ("group", label(&group.group).into_owned().into()),
                    ];
                    let value = value(group, last.unwrap_or(&LastArrivals::default()))?;
                    Some((with(&host.labels, labels), value))
                });
                rows.collect::<Vec<_>>()
            };
            host.jobs.iter().flat_map(of_job)
        })
    };
    out.gauge(
        "gputop_rank_last_ratio",
        "Share of the recent collectives of the group to which the rank came last",
        rows(|group, last| Some(f64::from(last.count) / f64::from(group.collectives))),
    )?;
    out.gauge(
        "gputop_rank_lateness_seconds",
        "Median time after the first rank, at the collectives to which the rank came last",
        rows(|_, last| (last.count > 0).then_some(last.lateness.0 as f64 / 1_000.0)),
    )
}

/// Writes the share of each phase in the samples of a process.
fn write_phases(out: &mut Families<'_>, hosts: &[HostRows<'_>]) -> fmt::Result {
    let rows = hosts.iter().flat_map(|host| {
        let of_window = |window: &Arc<PhaseWindow>| {
            let samples = f64::from(window.samples());
            let row = |count: &PhaseCount| {
                let phase = serde_json::to_value(count.phase).ok();
                let phase = phase.as_ref().and_then(|phase| phase.as_str()).unwrap_or_default();
                let labels = [
                    ("pid", window.process.pid.to_string().into()),
                    ("phase", phase.to_owned().into()),
                ];
                (with(&host.labels, labels), f64::from(count.count) / samples)
            };
            window.phases.iter().map(row).collect::<Vec<_>>()
        };
        host.phases.iter().flat_map(of_window)
    });
    out.gauge(
        "gputop_phase_ratio",
        "Share of the samples in which a process on an underused GPU was in this phase",
        rows,
    )
}

fn write_unreadable(out: &mut Families<'_>, hosts: &[HostRows<'_>]) -> fmt::Result {
    let unreadable = hosts.iter().filter_map(|host| {
        let pools = host.frame.pools.as_ref()?;
        Some((host.labels.clone(), pools.unread.len() as f64))
    });
    out.gauge(
        "gputop_unreadable_allocators",
        "Number of processes whose allocator cannot be read",
        unreadable,
    )
}

fn write_incidents(out: &mut Families<'_>, hosts: &[HostMetrics]) -> fmt::Result {
    let rows = || {
        let rows = hosts.iter().flat_map(|host| {
            host.incidents.iter().map(|incidents| {
                let card = ("card", label(&incidents.card));
                let severity = ("severity", Cow::Borrowed(incidents.severity));
                (with(&host_labels(host.name.as_ref()), [card, severity]), incidents)
            })
        });
        rows.collect::<Vec<_>>()
    };
    out.write(
        "gputop_incidents_total",
        Kind::Counter,
        "Incidents since the exporter was started, by error card",
        rows().into_iter().map(|(labels, row)| (labels, row.count as f64)),
    )?;
    out.gauge(
        "gputop_incident_last_timestamp_seconds",
        "Time of the latest incident",
        rows().into_iter().map(|(labels, row)| (labels, row.last)),
    )
}

#[cfg(test)]
mod tests;
