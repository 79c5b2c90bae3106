//! Decides for one cause: by figures from outside the program, then by the phase with the largest share.

use gputop_model::gpu::Throttle;
use gputop_model::phases::{Phase, PhaseWindow};
use gputop_model::reading::Reading;
use gputop_model::units::{BytesPerSecond, Millis, Percent};

use super::answer::{Answer, Cause, LoaderLimit};
use super::gpu_load::GpuLoad;
use super::share::{MIN_SAMPLES, Share};
use super::wording;

/// The facts about a process over a time window.
#[derive(Debug, Clone, Copy)]
pub struct Signals<'a> {
    pub window: &'a PhaseWindow,
    /// The GPU on which the process holds the most memory.
    pub gpu: Option<&'a GpuLoad>,
    /// The verdict on the rank that this one waits for, as a sentence without a period.
    pub waits_for: Option<&'a str>,
    /// The verdict that names the process as the rank that others wait for.
    pub holds_up: Option<&'a str>,
    pub cores: Option<Cores>,
}

/// Cores of the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cores {
    pub total: u32,
    pub idle: u32,
}

/// Work of the program itself, as opposed to waiting.
pub(super) const OWN_WORK: &[Phase] =
    &[Phase::Python, Phase::Forward, Phase::Backward, Phase::Optimizer, Phase::Unreadable];
pub(super) const LOADER_WAIT: &[Phase] = &[Phase::LoaderWait, Phase::LoaderStart];
/// A `QueueWait` may be the wait for a thread that works.
pub(super) const IDLE: &[Phase] = &[Phase::EventLoop, Phase::Sleep, Phase::QueueWait];

/// Utilization of a GPU that is busy, in percent of its SMs.
const BUSY_SMS: f64 = 75.0;
/// The same by power, for a GPU that does not report its SMs.
const BUSY_POWER_SHARE: f64 = 0.6;
const MIB: f64 = 1_048_576.0;
/// Time from which on the counters of a process say enough without its stacks.
const MIN_TIME_WITHOUT_STACKS: Millis = Millis(4_000);

impl Signals<'_> {
    pub(super) fn share(&self, phases: &[Phase]) -> Share {
        Share::new(self.window.count(phases), self.window.samples())
    }

    fn part(&self, phases: &[Phase]) -> f64 {
        self.share(phases).value()
    }

    pub(super) fn busy(&self) -> Option<f64> {
        self.gpu.and_then(GpuLoad::busy)
    }

    fn utilization(&self) -> f64 {
        self.gpu.and_then(|gpu| gpu.utilization).unwrap_or(0.0)
    }

    /// Returns the CPU time of the driving thread and of the autograd threads that work for it, from 0 on.
    fn work_cpu(&self) -> f64 {
        percent(&self.window.thread.cpu) + percent(&self.window.autograd_cpu)
    }

    fn is_gpu_busy(&self) -> bool {
        let Some(gpu) = self.gpu else { return false };
        match gpu.sm_active {
            Some(sm) => sm >= BUSY_SMS,
            None => {
                gpu.utilization.is_some_and(|util| util >= 95.0)
                    && gpu.power_share().is_some_and(|share| share >= BUSY_POWER_SHARE)
            }
        }
    }

    /// Returns the reason for a slow clock, if it held for a good part of the window.
    fn slowed(&self) -> Option<Throttle> {
        let (why, share) = self.gpu?.slowed?;
        let is_used = self.busy().is_none_or(|busy| busy >= 30.0);
        (share >= 0.3 && is_used).then_some(why)
    }

    fn gil_others(&self) -> f64 {
        let gil = self.window.gil.as_ref();
        gil.map_or(0.0, |gil| Share::new(gil.others, gil.samples).value())
    }

    /// Returns true if other threads use a core, or of a crowded host much more than the driving thread.
    fn do_others_work(&self) -> bool {
        let others = percent(&self.window.other_cpu);
        others >= 0.3 || others >= 0.1 && others >= 2.0 * percent(&self.window.thread.cpu)
    }

    /// Returns true if the kernels of NCCL wait: the GPU runs one all the time that neither computes nor moves data.
    fn is_nccl_waiting(&self) -> bool {
        let Some(gpu) = self.gpu else { return false };
        let is_low = |figure: Option<f64>, limit: f64| figure.is_some_and(|figure| figure < limit);
        let is_idle = match gpu.sm_active {
            Some(sm) => sm < 40.0 && is_low(gpu.tensor_active, 3.0) && is_low(gpu.memory_rate, 5.0),
            None => gpu.power_share().is_some_and(|share| share < 0.35),
        };
        self.window.has_nccl && self.utilization() >= 90.0 && is_idle
    }

    /// Returns true if all threads that work for the program wait in a backward pass or a collective.
    fn is_rank_waiting(&self) -> bool {
        let is_inside = self.part(&[Phase::Backward, Phase::Collective]) >= 0.5;
        let is_idle = known(&self.window.thread.cpu).is_some_and(|cpu| cpu < 0.2)
            && percent(&self.window.autograd_cpu) < 0.2;
        let is_explicit = self.part(&[Phase::Collective]) >= 0.4;
        let is_alone = self.window.has_nccl || percent(&self.window.other_cpu) < 0.2;
        is_idle && (is_explicit || is_inside && is_alone)
    }

    fn reads_storage(&self, rate: f64) -> bool {
        bytes(&self.window.read).is_some_and(|read| read >= rate * MIB)
    }

    fn is_disk_bound(&self) -> bool {
        let blocked = percent(&self.window.thread.blocked);
        let disk = self.part(&[Phase::Disk]);
        // A copy to the GPU waits for the pages of a file that it copies.
        let is_behind_copy =
            blocked >= 0.15 && self.reads_storage(10.0) && disk + self.part(&[Phase::Copy]) >= 0.3;
        let is_swapping = self.window.swapped.get().is_some_and(|bytes| bytes.0 > 0)
            && self.window.major_faults.get().is_some_and(|faults| faults >= 100);
        blocked >= 0.25 || disk >= 0.3 || is_behind_copy || is_swapping
    }

    pub(super) fn loader_limit(&self) -> LoaderLimit {
        let workers = &self.window.workers;
        let Some(cpu) = known(&workers.cpu).filter(|_| workers.count > 0) else {
            return LoaderLimit::Unknown;
        };
        let is_delayed = known(&workers.run_delay).is_some_and(|delay| delay >= 0.25);
        let cores = workers.cpu_count.get();
        if is_delayed && cores == Some(1) && workers.count > 1 {
            LoaderLimit::OneCore
        } else if is_delayed {
            LoaderLimit::Cores
        } else if cpu >= 0.6 {
            LoaderLimit::Workers
        } else {
            LoaderLimit::Storage
        }
    }

    fn is_copying(&self) -> bool {
        let copy = self.part(&[Phase::Copy]);
        let is_fast = self.gpu.and_then(|gpu| gpu.pcie_rx).is_some_and(|rx| rx > 2048.0 * MIB);
        copy >= 0.4 || copy >= 0.2 && is_fast
    }

    /// Decides by the figures that outrank every stack.
    fn outside_cause(&self) -> Option<Cause> {
        if let Some(why) = self.slowed() {
            return Some(Cause::SlowedDown(why));
        }
        if self.is_gpu_busy() {
            return Some(Cause::Busy);
        }
        if self.window.samples() < MIN_SAMPLES {
            return Some(self.cause_without_stacks().unwrap_or(Cause::NotEnoughSamples));
        }
        if percent(&self.window.quota_stopped) >= 0.1 {
            return Some(Cause::CpuQuota);
        }
        if self.gil_others() >= 0.5 && self.do_others_work() {
            return Some(Cause::GlobalLock);
        }
        let work = [OWN_WORK, &[Phase::Sync, Phase::Native]].concat();
        let delay = percent(&self.window.thread.run_delay);
        (delay >= 0.25 && self.part(&work) >= 0.6).then_some(Cause::NoFreeCore)
    }

    /// Decides by the figures of the kernel alone, for a process whose stacks cannot be read.
    fn cause_without_stacks(&self) -> Option<Cause> {
        let window = self.window;
        if window.no_stacks.is_none() || window.length < MIN_TIME_WITHOUT_STACKS {
            return None;
        }
        let is_unused = known(&window.thread.cpu).is_some_and(|cpu| cpu < 0.05)
            && known(&window.other_cpu).is_some_and(|cpu| cpu < 0.05)
            && self.gpu.is_some_and(|gpu| gpu.utilization.is_some_and(|util| util < 2.0));
        let rows = [
            (percent(&window.quota_stopped) >= 0.1, Cause::CpuQuota),
            (percent(&window.thread.run_delay) >= 0.25, Cause::NoFreeCore),
            (self.is_disk_bound(), Cause::Disk),
            (self.waits_for.is_some() || self.is_nccl_waiting(), Cause::OtherRank),
            (is_unused && window.workers.count == 0, Cause::NothingRuns),
        ];
        rows.into_iter().find(|(fits, _)| *fits).map(|(_, cause)| cause)
    }

    /// Decides by the largest phase of the driving thread that is a cause by itself, unless other Python code is clearly larger.
    fn phase_cause(&self) -> Option<Cause> {
        let part = |phases: &[Phase]| self.part(phases);
        let is_unused = known(&self.window.thread.cpu).is_none_or(|cpu| cpu < 0.05)
            && percent(&self.window.other_cpu) < 0.05;
        if part(&[Phase::Import, Phase::Load]) >= 0.5 {
            return Some(Cause::Starts);
        }
        // A process that used no SM waits for no kernel of its own.
        let waits = match self.gpu.is_some_and(|gpu| gpu.is_unused) {
            true => part(&[IDLE, &[Phase::Sync]].concat()),
            false if self.utilization() < 2.0 => part(IDLE),
            false => 0.0,
        };
        if waits >= 0.9 && is_unused {
            return Some(Cause::NothingRuns);
        }
        let row = |phases: &[Phase], min: f64, cause| (part(phases), part(phases) >= min, cause);
        let disk = part(&[Phase::Disk]).max(percent(&self.window.thread.blocked));
        let rows = [
            row(&[Phase::Compile], 0.3, Cause::Compiles),
            row(&[Phase::Checkpoint], 0.25, Cause::Checkpoint),
            row(LOADER_WAIT, 0.3, Cause::DataLoader(self.loader_limit())),
            row(&[Phase::LoaderInline], 0.3, Cause::LoadsInline),
            (disk, self.is_disk_bound(), Cause::Disk),
            row(&[Phase::Evaluation], 0.3, Cause::Evaluation),
            row(&[Phase::Log], 0.2, Cause::Logging),
            row(&[Phase::ChildProcess], 0.2, Cause::ChildProcess),
        ];
        let fitting = rows.into_iter().filter(|(_, fits, _)| *fits).rev();
        if let Some((share, _, cause)) = fitting.max_by(|a, b| a.0.total_cmp(&b.0)) {
            let own = self.share(&[Phase::Python]);
            let is_own_larger = own.value() - share > own.error();
            return is_own_larger.then(|| self.launch_cause()).flatten().or(Some(cause));
        }
        if self.waits_for.is_some() || self.is_nccl_waiting() || self.is_rank_waiting() {
            return Some(Cause::OtherRank);
        }
        self.is_copying().then_some(Cause::CopiesToGpu)
    }

    /// Decides between a wait for the GPU, small kernels and slow launches.
    fn launch_cause(&self) -> Option<Cause> {
        let (sync, own) = (self.part(&[Phase::Sync]), self.part(OWN_WORK));
        let utilization = self.gpu.and_then(|gpu| gpu.utilization);
        let sm_active = self.gpu.and_then(|gpu| gpu.sm_active);
        let is_launching = utilization.is_none_or(|util| util < 90.0);
        // A GPU that a thread waits for all the time is busy, unless the thread also launches work.
        let is_working_too = self.work_cpu() >= 0.1;
        if sync >= 0.2 && sync >= 0.8 * own && is_launching && is_working_too {
            return Some(Cause::WaitsForGpu);
        }
        if utilization.is_some_and(|util| util >= 90.0) && sm_active.is_some_and(|sm| sm < 25.0) {
            let is_launch_bound = own >= 0.5 && self.work_cpu() >= 0.8;
            return Some(if is_launch_bound { Cause::SmallKernels } else { Cause::FewSms });
        }
        let is_idle = self.busy().is_none_or(|busy| busy < 60.0);
        let is_working = own >= 0.5 && self.work_cpu() >= 0.7;
        // Many short waits for the GPU belong to the launches between them.
        let is_mixed = own + sync >= 0.7 && own >= 0.3 && self.work_cpu() >= 0.6;
        (is_idle && (is_working || is_mixed)).then_some(Cause::PythonOrLaunches)
    }

    fn cause(&self) -> Cause {
        let by_phase = || self.phase_cause().or_else(|| self.launch_cause());
        self.outside_cause().or_else(by_phase).unwrap_or(Cause::NoSingleCause)
    }
}

/// Returns the most likely cause with its evidence.
pub fn conclude(signals: &Signals<'_>) -> Answer {
    wording::answer(signals, signals.cause())
}

/// Returns a percentage as a share from 0 on, or 0 if it is missing.
pub(super) fn percent(reading: &Reading<Percent>) -> f64 {
    known(reading).unwrap_or(0.0)
}

pub(super) fn known(reading: &Reading<Percent>) -> Option<f64> {
    reading.get().map(|percent| percent.0 / 100.0)
}

pub(super) fn bytes(reading: &Reading<BytesPerSecond>) -> Option<f64> {
    reading.get().map(|rate| rate.0 as f64)
}

/// Returns a time as `10 s`.
pub(super) fn seconds(time: Millis) -> String {
    format!("{:.0} s", time.0 as f64 / 1e3)
}
