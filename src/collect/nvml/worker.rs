//! Worker thread of one GPU. The worker opens the GPU, reads the groups of values that are due on each tick, and
//! reopens the GPU after a failure.
//!
//! No other thread waits for a worker. If a worker hangs in a driver call, the agent notices that the GPU's data has
//! become stale.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

use gputop_model::gpu::Period;
use gputop_model::{Gpu, GpuUuid, Health, HealthState, Memory, Millis, Reading, Reason};
use gputop_peek::clock::now_mono;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::gpm::GpmSample;
use nvml_wrapper::{Device, Nvml};

use super::ReceiverClosed;
use super::device;
use super::library::Library;
use super::raw::{Buffers, ProcessList};
use super::schedule::{Group, Timer};

/// Delay before reopening a lost GPU or driver.
const RETRY_INTERVAL: Duration = Duration::from_secs(5);

/// While no MPS server is known, its clients are read once for this many reads of the graphics processes, because each
/// list costs a millisecond.
const MPS_PERIOD: u32 = 12;

#[derive(Debug, Clone, Copy)]
pub enum WorkerCommand {
    /// Start (`true`) or stop (`false`) reading the expensive values, which only the GPU's own screen shows.
    Focus(bool),
    Interval(Millis),
    /// Read the GPU immediately, before the next tick, because an allocation failed.
    Now,
}

/// Starts the worker of one GPU, which passes its readings to `report`. The worker exits when the sender of `commands`
/// is dropped. `session` keeps the driver loaded until the worker has opened the GPU: without persistence mode, loading
/// it again takes seconds.
pub fn spawn(
    index: u32,
    library: Arc<Library>,
    session: Option<Arc<Nvml>>,
    interval: Millis,
    commands: Receiver<WorkerCommand>,
    report: impl Fn(Gpu) -> Result<(), ReceiverClosed> + Send + 'static,
) -> std::io::Result<()> {
    let worker = Worker {
        index,
        library,
        loaded: session,
        interval,
        focused: false,
        commands,
        report: Box::new(report),
        gpu: Gpu { index, name: "GPU (not responding)".into(), ..Gpu::default() },
    };
    std::thread::Builder::new().name(format!("gpu {index}")).spawn(move || worker.run())?;
    Ok(())
}

struct Worker {
    index: u32,
    library: Arc<Library>,
    /// The session of the thread that loaded the driver, until this worker uses it.
    loaded: Option<Arc<Nvml>>,
    interval: Millis,
    focused: bool,
    commands: Receiver<WorkerCommand>,
    report: Box<dyn Fn(Gpu) -> Result<(), ReceiverClosed> + Send>,
    /// Last readings of the GPU. While the GPU is lost, they stay on the screen, marked as stale.
    gpu: Gpu,
}

/// Reason why a session with the GPU ended.
enum End {
    Closed,
    Failed(NvmlError),
}

impl From<NvmlError> for End {
    fn from(error: NvmlError) -> Self {
        Self::Failed(error)
    }
}

impl Worker {
    fn run(mut self) {
        loop {
            let Err(end) = self.session();
            match end {
                End::Closed => return,
                End::Failed(error) => self.report_failure(&error),
            }
            if self.wait(RETRY_INTERVAL).is_err() {
                return;
            }
        }
    }

    /// Opens the GPU and reads its values until the GPU is lost.
    fn session(&mut self) -> Result<std::convert::Infallible, End> {
        let nvml = match self.loaded.take() {
            Some(nvml) => nvml,
            None => self.library.acquire()?,
        };
        let device = self.find(&nvml)?;
        let mut reader = Reader::new();
        let mut opened = device::open(&device, self.index)?;
        reader.read(&nvml, &device, &mut opened, self.focused)?;
        // Replace the last readings only after a successful read. Until then, they stay on the screen.
        self.gpu = opened;
        loop {
            self.gpu.at = now_mono();
            self.gpu.health.state = HealthState::Answering;
            self.report()?;
            // A copy, because a GPU that is lost between two calls must not lose the last figures.
            let mut next = self.gpu.clone();
            // Read the rarely changing values after the report, so that slow calls do not delay the first frame.
            reader.read_rare(&device, &mut next);
            self.wait_for_tick()?;
            reader.read(&nvml, &device, &mut next, self.focused)?;
            self.gpu = next;
        }
    }

    fn report(&self) -> Result<(), End> {
        (self.report)(self.gpu.clone()).map_err(|ReceiverClosed| End::Closed)
    }

    /// Finds the GPU by its UUID or, until the UUID is known, by its index. When a GPU is lost, the indices of the
    /// other GPUs can shift, so the index may then refer to a different GPU.
    fn find<'n>(&self, nvml: &'n nvml_wrapper::Nvml) -> Result<Device<'n>, NvmlError> {
        if self.gpu.uuid == GpuUuid::default() {
            return nvml.device_by_index(self.index);
        }
        nvml.device_by_uuid(&*self.gpu.uuid.0)
    }

    fn report_failure(&mut self, error: &NvmlError) {
        let state = match error {
            NvmlError::NoPermission => HealthState::Denied,
            _ => HealthState::Lost,
        };
        if state == HealthState::Denied && self.gpu.uuid == GpuUuid::default() {
            self.gpu.name = "GPU (not yours)".into();
            let why = "the driver denies access to this GPU";
            self.gpu.processes = Reading::missing(Reason::NotRead, why);
        }
        if self.gpu.health.state != state {
            let was_read = self.gpu.at.0 > 0;
            let since = was_read.then(now_mono);
            self.gpu.health = Health { state, since, detail: Some(error.to_string()) };
        }
        // Report the last known processes unchanged, because their exits are detected through the kernel.
        let _ = self.report();
    }

    /// Waits for the next multiple of the interval, so that all workers read at the same time.
    fn wait_for_tick(&mut self) -> Result<(), End> {
        loop {
            let (now, interval) = (now_mono().0, self.interval.0.max(1));
            let left = (now / interval + 1) * interval - now;
            if self.wait(Duration::from_millis(left))? {
                return Ok(());
            }
        }
    }

    /// Waits for a command. Returns true if the GPU is to be read now: the time is over, a read was requested, or a
    /// screen was opened that should not stay empty until the next tick.
    fn wait(&mut self, time: Duration) -> Result<bool, End> {
        match self.commands.recv_timeout(time) {
            Err(RecvTimeoutError::Timeout) | Ok(WorkerCommand::Now) => return Ok(true),
            Err(RecvTimeoutError::Disconnected) => return Err(End::Closed),
            Ok(WorkerCommand::Interval(interval)) => self.interval = interval,
            Ok(WorkerCommand::Focus(focused)) => {
                self.focused = focused;
                return Ok(focused);
            }
        }
        Ok(false)
    }
}

/// State for reading one open GPU, retained between ticks.
struct Reader<'n> {
    processes: Timer,
    utilization: Timer,
    board: Timer,
    slow: Timer,
    traffic: Timer,
    performance: Timer,
    buffers: Buffers,
    last_memory: Memory,
    /// True if the last read found graphics contexts. If so, graphics processes are read whenever memory usage changes,
    /// not only periodically.
    graphics_seen: bool,
    graphics: Timer,
    graphics_reads: u32,
    /// True if the last read found clients of an MPS server, which are then read each time.
    has_mps: bool,
    newest_sample: u64,
    counters: Option<device::NvlinkCounters>,
    /// True if the GPU has performance metrics. `None` before they were needed.
    has_gpm: Option<bool>,
    sample: Option<GpmSample<'n>>,
}

impl<'n> Reader<'n> {
    fn new() -> Self {
        let mut utilization = Timer::new(Group::ProcessUtilization);
        // Skip utilization in the first frame, which does not need it.
        utilization.postpone(now_mono().0.saturating_sub(4_500));
        Self {
            processes: Timer::new(Group::Processes),
            utilization,
            board: Timer::new(Group::Figures(Period::Once)),
            slow: Timer::new(Group::Figures(Period::Slow)),
            traffic: Timer::new(Group::Figures(Period::WhileShown)),
            performance: Timer::new(Group::Performance),
            buffers: Buffers::default(),
            last_memory: Memory::default(),
            graphics_seen: false,
            graphics: Timer::new(Group::Processes),
            graphics_reads: 0,
            has_mps: false,
            newest_sample: 0,
            counters: None,
            has_gpm: None,
            sample: None,
        }
    }

    fn read(
        &mut self,
        nvml: &'n Nvml,
        device: &Device<'n>,
        gpu: &mut Gpu,
        focused: bool,
    ) -> Result<(), NvmlError> {
        let now = now_mono();
        device::tick(device, gpu)?;
        let changed = gpu.memory != self.last_memory;
        self.last_memory = gpu.memory.clone();
        if self.processes.due(now.0, changed, focused) {
            let graphics = self.graphics.due(now.0, self.graphics_seen, focused);
            self.graphics_reads = self.graphics_reads.wrapping_add(u32::from(graphics));
            let mps = self.has_mps || graphics && self.graphics_reads % MPS_PERIOD == 1;
            let lists = [
                (graphics || self.graphics_seen).then_some(ProcessList::Graphics),
                mps.then_some(ProcessList::Mps),
            ];
            let lists: Vec<ProcessList> = lists.into_iter().flatten().collect();
            let has_mps = device::processes(device, gpu, &lists, &mut self.buffers);
            if mps {
                self.has_mps = has_mps;
            }
            gpu.processes_at = Some(now);
            if graphics {
                self.graphics_seen = device::any_graphics(gpu);
            }
        }
        device::sum_shared_memory(gpu);
        if self.utilization.due(now.0, false, focused) {
            self.newest_sample =
                device::utilization(device, gpu, self.newest_sample, &mut self.buffers);
            gpu.utilization_at = Some(now);
        }
        let is_computing = device::any_compute(gpu);
        let has_gpm = (focused || is_computing)
            && *self.has_gpm.get_or_insert_with(|| device::has_gpm(device));
        if has_gpm {
            // Cheap enough for every tick of a screen. In the background, it tells an idle GPU from a busy one.
            if focused || self.performance.due(now.0, false, false) {
                gpu.traffic = Some(device::performance(nvml, device, now, &mut self.sample));
            }
        } else if !focused {
            (gpu.traffic, self.counters, self.sample) = (None, None, None);
        } else if self.traffic.due(now.0, false, focused) {
            gpu.traffic = Some(device::traffic(device, now, &mut self.counters));
        }
        device::check_all_read(device, gpu)
    }

    /// Reads the groups of values that rarely or never change. The next report includes them.
    fn read_rare(&mut self, device: &Device<'_>, gpu: &mut Gpu) {
        let now = now_mono();
        if self.board.due(now.0, false, false) {
            device::describe(device, gpu);
        }
        if self.slow.due(now.0, false, false) {
            device::slow(device, gpu);
        }
    }
}
