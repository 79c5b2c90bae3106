//! Totals over the frames of a recording.

use std::collections::{BTreeMap, HashMap};

use gputop_allocator::pool_history::PoolHistory;
use gputop_allocator::warnings::{NoteKind, Sample};
use gputop_model::frame::{MAX_GPUS, SCHEMA};
use gputop_model::reported_pool::Framework;
use gputop_model::{
    Allocator, Bytes, GpuUuid, Hello, Millis, Mono, Percent, Phase, PhaseWindow, Process,
    ProcessKey, Record, Throttle, UnixMillis,
};

use super::distribution::Distribution;
use super::line::{FrameLine, GpuLine};
use super::run_summary::{
    Energy, GpuSummary, IncidentSummary, PhaseShare, PhaseSummary, PoolSummary, ProcessSummary,
    RunSummary, TORCH, ThrottleShare, WarningSummary,
};

/// Maximum number of processes for which totals are kept. Further processes are only counted.
const MAX_PROCESSES: usize = 4_096;
const MAX_POOLS: usize = 64;
/// Recording time between two checks. Each check evaluates the warnings and updates the process descriptions.
const CHECK_INTERVAL: Millis = Millis(10_000);
/// Time for which pool samples are retained, equal to the longest time span that a warning examines.
pub const RETENTION: Millis = Millis(600_000);

/// Totals over one part of a recording.
#[derive(Debug, Default)]
pub struct Totals {
    recent: Recent,
    /// Monotonic and wall-clock time of the first sample.
    start: Option<(Mono, UnixMillis)>,
    duration: Millis,
    covered: Millis,
    gaps: u64,
    samples: u64,
    gpus: BTreeMap<String, GpuTotals>,
    processes: HashMap<ProcessKey, ProcessTotals>,
    omitted: u64,
    /// For each warning, the time of its first occurrence and its latest text.
    warnings: BTreeMap<(ProcessKey, u32, NoteKind), (Mono, String)>,
}

/// State from recent minutes that is needed to process the next frame.
#[derive(Debug, Default)]
struct Recent {
    last: Option<Mono>,
    /// True if data after the last frame is unreadable.
    is_damaged: bool,
    checked: Mono,
    power: HashMap<String, (Mono, f64)>,
    pools: PoolHistory,
    /// Number of processes in the last frame, used as the initial capacity for the next frame.
    process_count: usize,
}

#[derive(Debug, Default)]
struct GpuTotals {
    index: u32,
    name: String,
    total: Option<Bytes>,
    driver_reserved: Option<Bytes>,
    used: Distribution,
    /// Time in milliseconds during which the utilization was known.
    known: u64,
    /// Integral of the SM utilization, in percent times milliseconds.
    sm: f64,
    idle: u64,
    waiting: u64,
    /// Time in milliseconds during which the throttle reasons were known.
    throttle_known: u64,
    throttled: u64,
    reasons: Vec<(Throttle, u64)>,
    joules: f64,
    energy_time: u64,
}

#[derive(Debug, Default)]
struct ProcessTotals {
    description: Option<Box<Process>>,
    gpus: Vec<String>,
    time: u64,
    vram: Distribution,
    outside_peak: Option<Bytes>,
    known: u64,
    waiting: u64,
    phases: PhaseTotals,
    pools: Vec<PoolTotals>,
}

/// Time that a process spent in each phase while its GPU had little to do.
#[derive(Debug, Default)]
struct PhaseTotals {
    /// End of the last window. Windows overlap while somebody watches the process.
    until: Mono,
    /// Time in milliseconds that the windows cover.
    sampled: f64,
    by_phase: BTreeMap<Phase, f64>,
}

#[derive(Debug, Default)]
struct PoolTotals {
    /// The pool's framework, or `None` for PyTorch.
    framework: Option<Framework>,
    allocator: Allocator,
    ordinal: u32,
    gpu: Option<String>,
    reserved: Distribution,
    allocated: Distribution,
    reserved_peak: Bytes,
}

/// Device memory of one process in one frame.
#[derive(Debug, Default)]
struct InFrame<'a> {
    vram: Option<u64>,
    /// Total reserved memory of the process's PyTorch pools.
    reserved: Option<u64>,
    /// Highest utilization among the process's GPUs. The driver lists no utilization for a process that runs no
    /// kernels.
    sm: Option<f64>,
    /// UUIDs of the process's GPUs.
    gpus: Vec<&'a str>,
}

impl Totals {
    /// Returns empty totals for the next part of the recording, which continue from the recent state of these totals.
    #[must_use]
    pub fn continued(self) -> Self {
        Self { recent: self.recent, ..Self::default() }
    }

    pub fn push(&mut self, frame: &FrameLine<'_>) {
        let time = self.advance(frame);
        self.samples += 1;
        let mut seen: HashMap<ProcessKey, InFrame<'_>> =
            HashMap::with_capacity(self.recent.process_count);
        for gpu in frame.live_gpus() {
            self.push_gpu(frame.mono, gpu, time);
            for process in gpu.processes.value().into_iter().flat_map(|list| &list.0) {
                let seen = seen.entry(process.key()).or_default();
                if let Some(vram) = process.vram.get() {
                    seen.vram = Some(seen.vram.unwrap_or(0).saturating_add(vram.0));
                }
                if let Some(sm) = gpu.sm.get() {
                    seen.sm = Some(seen.sm.unwrap_or(0.0).max(sm.0));
                }
                seen.gpus.push(&gpu.uuid);
            }
        }
        self.push_pools(frame, time, &mut seen);
        self.recent.process_count = seen.len();
        let is_check_due = frame.mono < self.recent.checked
            || frame.mono.since(self.recent.checked) >= CHECK_INTERVAL;
        let mut is_new = false;
        for (key, seen) in seen {
            if let Some(process) = self.process(key) {
                is_new |= process.description.is_none();
                process.push(seen, time);
            }
        }
        if is_check_due || is_new {
            self.describe(frame);
        }
        if is_check_due {
            self.recent.checked = frame.mono;
            self.check_warnings();
        }
    }

    /// Adds the phases of a process in a window, if the process has used a GPU.
    pub fn push_phases(&mut self, window: &PhaseWindow) {
        if let Some(process) = self.processes.get_mut(&window.process) {
            process.phases.push(window);
        }
    }

    /// Notes that data after the last frame is unreadable. The summary then has a gap there.
    pub fn push_damage(&mut self) {
        self.recent.is_damaged = true;
    }

    /// Returns the time that a frame represents: the time since the previous frame, or 0 after a gap.
    fn advance(&mut self, frame: &FrameLine<'_>) -> Millis {
        self.start.get_or_insert((frame.mono, frame.time));
        let is_damaged = std::mem::take(&mut self.recent.is_damaged);
        let Some(last) = self.recent.last.replace(frame.mono) else {
            self.gaps += u64::from(is_damaged);
            return Millis(0);
        };
        let passed = frame.mono.since(last);
        self.duration.0 += passed.0;
        // Bridge a single late or lost frame, as charts do.
        let interval = frame.interval.0.clamp(1_000, 3_600_000);
        if is_damaged || frame.mono < last || passed.0 > interval * 5 / 2 {
            self.gaps += 1;
            self.recent.power.clear();
            return Millis(0);
        }
        self.covered.0 += passed.0;
        passed
    }

    fn push_gpu(&mut self, now: Mono, gpu: &GpuLine<'_>, time: Millis) {
        if !self.gpus.contains_key(&*gpu.uuid) {
            if self.gpus.len() == MAX_GPUS {
                return;
            }
            self.gpus.insert(gpu.uuid.clone().into_owned(), GpuTotals::default());
        }
        let Some(totals) = self.gpus.get_mut(&*gpu.uuid) else { return };
        totals.index = gpu.index;
        if totals.name.is_empty() {
            totals.name = gpu.name.clone().into_owned();
        }
        totals.total = gpu.memory.total.get().or(totals.total);
        totals.driver_reserved = totals.driver_reserved.max(gpu.memory.reserved.get());
        if let Some(used) = gpu.memory.taken() {
            totals.used.add(used, used, time);
        }
        if let Some(sm) = gpu.sm.get() {
            totals.known += time.0;
            totals.sm += sm.0 * time.0 as f64;
            let has_processes = gpu.processes.value().is_some_and(|list| !list.0.is_empty());
            match (sm.0 > 0.0, has_processes) {
                (true, _) => {}
                (false, true) => totals.waiting += time.0,
                (false, false) => totals.idle += time.0,
            }
        }
        if let Some(reasons) = gpu.throttle.value() {
            totals.add_throttle(reasons, time);
        }
        let power = gpu.power.get().map(|power| f64::from(power.0) / 1_000.0);
        let recent = &mut self.recent.power;
        match power {
            None => drop(recent.remove(&*gpu.uuid)),
            Some(watts) => {
                let before = match recent.get_mut(&*gpu.uuid) {
                    Some(before) => Some(std::mem::replace(before, (now, watts))),
                    None => recent.insert(gpu.uuid.clone().into_owned(), (now, watts)),
                };
                if let Some((then, before)) = before {
                    let passed = now.since(then).0;
                    totals.joules += (before + watts) / 2.0 * passed as f64 / 1_000.0;
                    totals.energy_time += passed;
                }
            }
        }
    }

    fn push_pools(
        &mut self,
        frame: &FrameLine<'_>,
        time: Millis,
        seen: &mut HashMap<ProcessKey, InFrame<'_>>,
    ) {
        let Some(pools) = frame.live_pools() else { return };
        for pool in &pools.list {
            let stats = &pool.stats;
            let uuid = pool.gpu.value().map(|uuid| uuid.to_string());
            let of_process = seen.entry(pool.process).or_default();
            let reserved = of_process.reserved.get_or_insert(0);
            *reserved = reserved.saturating_add(stats.reserved.last().0);
            let gpu = uuid.as_ref();
            let gpu = frame.gpus.iter().find(|g| Some(&*g.uuid) == gpu.map(|u| &**u));
            let free = gpu.and_then(|gpu| gpu.memory.free.get());
            let sample = Sample::new(frame.mono, stats, free);
            self.recent.pools.add((pool.process, pool.ordinal), sample);
            let Some(totals) = self.pool(pool.process, None, pool.ordinal) else { continue };
            totals.allocator = pool.allocator;
            totals.gpu = uuid;
            let (reserved, allocated) = (stats.reserved, stats.allocated);
            totals.reserved.add(reserved.last(), reserved.max(), time);
            totals.allocated.add(allocated.last(), allocated.max(), time);
            totals.reserved_peak = totals.reserved_peak.max(stats.reserved_peak);
        }
        for pool in &pools.reported {
            seen.entry(pool.process).or_default();
            let Some(totals) = self.pool(pool.process, Some(pool.framework), pool.ordinal) else {
                continue;
            };
            totals.allocator = pool.allocator;
            totals.gpu = pool.gpu.value().map(|uuid| uuid.to_string());
            if let Some(reserved) = pool.reserved.get() {
                totals.reserved.add(reserved, reserved, time);
            }
            if let Some(allocated) = pool.allocated.get() {
                totals.allocated.add(allocated, allocated, time);
            }
        }
    }

    /// Returns the totals of a process, or `None` if the maximum number of processes is reached.
    fn process(&mut self, key: ProcessKey) -> Option<&mut ProcessTotals> {
        if self.processes.len() >= MAX_PROCESSES && !self.processes.contains_key(&key) {
            self.omitted += 1;
            return None;
        }
        Some(self.processes.entry(key).or_default())
    }

    fn pool(
        &mut self,
        process: ProcessKey,
        framework: Option<Framework>,
        ordinal: u32,
    ) -> Option<&mut PoolTotals> {
        let pools = &mut self.process(process)?.pools;
        let at = pools.iter().position(|pool| pool.is(framework, ordinal));
        if at.is_none() && pools.len() < MAX_POOLS {
            pools.push(PoolTotals::new(framework, ordinal));
        }
        let last = pools.len() - 1;
        let pool = pools.get_mut(at.unwrap_or(last))?;
        pool.is(framework, ordinal).then_some(pool)
    }

    fn describe(&mut self, frame: &FrameLine<'_>) {
        for process in frame.described_processes() {
            if let Some(totals) = self.processes.get_mut(&process.key) {
                totals.description = Some(Box::new(process));
            }
        }
    }

    fn check_warnings(&mut self) {
        let oldest = Mono(self.recent.checked.0.saturating_sub(RETENTION.0));
        self.recent.pools.forget_before(oldest);
        for ((process, ordinal), notes) in self.recent.pools.all_notes() {
            for note in notes {
                let key = (process, ordinal, note.kind);
                let warning = self.warnings.entry(key).or_insert((note.since, String::new()));
                warning.1 = note.text;
            }
        }
    }

    /// Appends the totals of the next part of the recording.
    pub fn append(&mut self, later: Self) {
        self.check_warnings();
        self.start = self.start.or(later.start);
        self.duration.0 += later.duration.0;
        self.covered.0 += later.covered.0;
        self.gaps += later.gaps;
        self.samples += later.samples;
        self.omitted += later.omitted;
        for (uuid, gpu) in later.gpus {
            if self.gpus.len() < MAX_GPUS || self.gpus.contains_key(&uuid) {
                self.gpus.entry(uuid).or_default().append(gpu);
            }
        }
        for (key, process) in later.processes {
            if let Some(own) = self.process(key) {
                own.append(process);
            }
        }
        for (key, (since, text)) in later.warnings {
            let warning = self.warnings.entry(key).or_insert((since, String::new()));
            warning.1 = text;
        }
        self.recent = later.recent;
    }

    /// Returns the summary. `incidents` are the results of the diagnosis.
    pub fn finish(
        mut self,
        recording: &str,
        hello: &Hello,
        damaged_minutes: u64,
        incidents: &[Record],
    ) -> RunSummary {
        self.check_warnings();
        let (mono, start) = self.start.unwrap_or_default();
        let driver_reserved = self.gpus.values().map(|gpu| gpu.driver_reserved).max().flatten();
        let mut gpus: Vec<GpuSummary> =
            self.gpus.into_iter().map(|(uuid, gpu)| gpu.summary(uuid)).collect();
        gpus.sort_unstable_by_key(|gpu| gpu.index);
        let mut processes: Vec<ProcessSummary> = Vec::new();
        for (key, totals) in self.processes {
            let warnings = self.warnings.iter().filter(|((process, ..), _)| *process == key);
            let warnings = warnings.map(|((_, ordinal, kind), (since, text))| WarningSummary {
                kind: kind.word(),
                ordinal: *ordinal,
                after: since.since(mono),
                text: text.clone(),
            });
            processes.push(totals.summary(key, warnings.collect(), &gpus));
        }
        let peak = |process: &ProcessSummary| process.vram.map(|vram| vram.peak);
        processes
            .sort_unstable_by_key(|process| (std::cmp::Reverse(peak(process)), process.process));
        let mut incidents: Vec<IncidentSummary> =
            incidents.iter().map(|record| IncidentSummary::of(record, mono, &gpus)).collect();
        incidents.sort_by_key(|incident| incident.after);
        RunSummary {
            schema: SCHEMA,
            recording: recording.to_owned(),
            host: hello.host.clone(),
            start,
            duration: self.duration,
            covered: self.covered,
            gaps: self.gaps + u64::from(self.recent.is_damaged),
            samples: self.samples,
            damaged_minutes,
            driver_reserved,
            gpus,
            processes,
            omitted_processes: self.omitted,
            incidents,
        }
    }
}

/// Returns a share in percent, or `None` if the total time is unknown.
fn share(part: u64, whole: u64) -> Option<Percent> {
    (whole > 0).then(|| Percent::rounded(part as f64 * 100.0 / whole as f64))
}

impl GpuTotals {
    fn add_throttle(&mut self, reasons: &[Throttle], time: Millis) {
        let mut lowering = reasons
            .iter()
            .filter(|reason| **reason == Throttle::SwPowerCap || reason.is_trouble())
            .peekable();
        self.throttle_known += time.0;
        if lowering.peek().is_some() {
            self.throttled += time.0;
        }
        lowering.for_each(|reason| self.add_reason(*reason, time.0));
    }

    fn add_reason(&mut self, reason: Throttle, time: u64) {
        match self.reasons.iter_mut().find(|(known, _)| *known == reason) {
            Some((_, total)) => *total += time,
            None => self.reasons.push((reason, time)),
        }
    }

    fn append(&mut self, later: Self) {
        self.index = later.index;
        if self.name.is_empty() {
            self.name = later.name;
        }
        self.total = later.total.or(self.total);
        self.driver_reserved = self.driver_reserved.max(later.driver_reserved);
        self.used.merge(later.used);
        self.known += later.known;
        self.idle += later.idle;
        self.waiting += later.waiting;
        self.throttle_known += later.throttle_known;
        self.sm += later.sm;
        self.throttled += later.throttled;
        for (reason, time) in later.reasons {
            self.add_reason(reason, time);
        }
        self.joules += later.joules;
        self.energy_time += later.energy_time;
    }

    fn summary(self, uuid: String) -> GpuSummary {
        let used = self.used.percentiles();
        let mut reasons: Vec<ThrottleShare> = Vec::new();
        for (reason, time) in self.reasons {
            let percent = share(time, self.throttle_known);
            reasons.extend(percent.map(|percent| ThrottleShare { reason, percent }));
        }
        reasons.sort_by(|a, b| b.percent.0.total_cmp(&a.percent.0));
        GpuSummary {
            index: self.index,
            uuid: GpuUuid(uuid.into()),
            name: self.name,
            total: self.total,
            used,
            unused: self.total.and_then(|total| Some(Bytes(total.0.saturating_sub(used?.peak.0)))),
            idle_percent: share(self.idle, self.known),
            waiting_percent: share(self.waiting, self.known),
            sm_percent: (self.known > 0).then(|| Percent(self.sm / self.known as f64)),
            throttled_percent: share(self.throttled, self.throttle_known),
            throttle_reasons: reasons,
            energy: (self.energy_time > 0).then_some(Energy {
                joules: (self.joules * 10.0).round() / 10.0,
                covered: Millis(self.energy_time),
            }),
        }
    }
}

impl ProcessTotals {
    fn push(&mut self, seen: InFrame<'_>, time: Millis) {
        self.time += time.0;
        for gpu in seen.gpus {
            if !self.gpus.iter().any(|known| known == gpu) {
                self.gpus.push(gpu.to_owned());
            }
        }
        if let Some(vram) = seen.vram.map(Bytes) {
            self.vram.add(vram, vram, time);
            let outside = Bytes(vram.0.saturating_sub(seen.reserved.unwrap_or(0)));
            let outside = seen.reserved.map(|_| outside);
            self.outside_peak = self.outside_peak.max(outside);
        }
        if let Some(sm) = seen.sm {
            self.known += time.0;
            if sm <= 0.0 {
                self.waiting += time.0;
            }
        }
    }

    fn append(&mut self, later: Self) {
        self.description = later.description.or(self.description.take());
        for gpu in later.gpus {
            if !self.gpus.contains(&gpu) {
                self.gpus.push(gpu);
            }
        }
        self.time += later.time;
        self.vram.merge(later.vram);
        self.outside_peak = self.outside_peak.max(later.outside_peak);
        self.known += later.known;
        self.waiting += later.waiting;
        self.phases.append(later.phases);
        for pool in later.pools {
            match self.pools.iter_mut().find(|own| own.is(pool.framework, pool.ordinal)) {
                Some(own) => own.append(pool),
                None => self.pools.push(pool),
            }
        }
    }

    fn summary(
        self,
        process: ProcessKey,
        warnings: Vec<WarningSummary>,
        gpus: &[GpuSummary],
    ) -> ProcessSummary {
        let index = |uuid: &String| {
            let gpu = gpus.iter().find(|gpu| *gpu.uuid.0 == **uuid);
            gpu.map(|gpu| gpu.index)
        };
        let mut indices: Vec<u32> = self.gpus.iter().filter_map(index).collect();
        indices.sort_unstable();
        let facts = self.description.as_deref();
        let mut pools: Vec<PoolSummary> = Vec::new();
        for pool in self.pools {
            let gpu = pool.gpu.as_ref().and_then(index);
            pools.push(pool.summary(gpu));
        }
        // Omit pools that were always empty, because PyTorch creates a pool for each visible device.
        let is_empty = |pool: &PoolSummary| {
            let peaks = [pool.reserved, pool.allocated].map(|sizes| sizes.map(|sizes| sizes.peak));
            peaks.into_iter().flatten().all(|peak| peak == Bytes(0))
        };
        pools.retain(|pool| !is_empty(pool));
        pools.sort_unstable_by_key(|pool| pool.ordinal);
        ProcessSummary {
            process,
            command: facts.and_then(|facts| match facts.command.value() {
                Some(command) => Some(command.clone()),
                None => Some(facts.name.clone()).filter(|name| !name.is_empty()),
            }),
            user: facts.and_then(|facts| facts.user.value().cloned()),
            rank: facts.and_then(|facts| facts.rank.get()),
            run: facts.and_then(|facts| facts.run),
            gpus: indices,
            duration: Millis(self.time),
            vram: self.vram.percentiles(),
            outside_peak: self.outside_peak,
            waiting_percent: share(self.waiting, self.known),
            phases: self.phases.summary(self.time),
            pools,
            warnings,
            fit: None,
        }
    }
}

impl PhaseTotals {
    fn push(&mut self, window: &PhaseWindow) {
        let samples = window.samples();
        // Count the part of the window that the windows before it do not cover.
        let time = window.length.min(window.at.since(self.until)).0 as f64;
        if samples == 0 {
            return;
        }
        self.until = self.until.max(window.at);
        self.sampled += time;
        for phase in &window.phases {
            let share = f64::from(phase.count) / f64::from(samples);
            *self.by_phase.entry(phase.phase).or_default() += time * share;
        }
    }

    fn append(&mut self, later: Self) {
        self.until = self.until.max(later.until);
        self.sampled += later.sampled;
        for (phase, time) in later.by_phase {
            *self.by_phase.entry(phase).or_default() += time;
        }
    }

    /// Returns the shares of `time`, the milliseconds in which the process used a GPU. Returns `None` if its stack was
    /// never sampled.
    fn summary(self, time: u64) -> Option<PhaseSummary> {
        let share = |part: f64| Percent::rounded((part * 100.0 / time as f64).min(100.0));
        let phases = self.by_phase.into_iter();
        let mut phases: Vec<PhaseShare> =
            phases.map(|(phase, part)| PhaseShare { phase, percent: share(part) }).collect();
        phases.sort_by(|a, b| b.percent.0.total_cmp(&a.percent.0));
        let sampled_percent = share(self.sampled);
        (time > 0 && self.sampled > 0.0).then_some(PhaseSummary { sampled_percent, phases })
    }
}

impl PoolTotals {
    fn new(framework: Option<Framework>, ordinal: u32) -> Self {
        Self { framework, ordinal, ..Self::default() }
    }

    fn is(&self, framework: Option<Framework>, ordinal: u32) -> bool {
        (self.framework, self.ordinal) == (framework, ordinal)
    }

    fn append(&mut self, later: Self) {
        self.allocator = later.allocator;
        self.gpu = later.gpu.or(self.gpu.take());
        self.reserved.merge(later.reserved);
        self.allocated.merge(later.allocated);
        self.reserved_peak = self.reserved_peak.max(later.reserved_peak);
    }

    fn summary(self, gpu: Option<u32>) -> PoolSummary {
        let (reserved, allocated) = (self.reserved.percentiles(), self.allocated.percentiles());
        let unused = reserved
            .zip(allocated)
            .map(|(reserved, allocated)| Bytes(reserved.peak.0.saturating_sub(allocated.peak.0)));
        PoolSummary {
            framework: self.framework.map_or(TORCH, Framework::words),
            allocator: self.allocator,
            ordinal: self.ordinal,
            gpu,
            reserved,
            allocated,
            unused,
            reserved_peak: self.reserved_peak,
        }
    }
}

#[cfg(test)]
mod tests;
