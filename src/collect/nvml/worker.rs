//! The thread of one GPU: opens it, reads what is due on every tick, and opens it anew after it was lost.
//!
//! A worker that hangs in a call is not waited for by anyone; the agent sees that its section grows old.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SendError, Sender};
use std::time::Duration;

use nvml_wrapper::Device;
use nvml_wrapper::error::NvmlError;

use super::device;
use super::library::Library;
use super::raw::Buffers;
use super::schedule::{self, Timer};
use crate::collect::agent::Section;
use crate::collect::clock::now_mono;
use crate::model::gpu::{Gpu, Health, HealthState, Memory};
use crate::model::units::{GpuUuid, Millis};

/// How long a lost GPU or driver is left alone before it is opened again.
const RETRY: Duration = Duration::from_secs(5);

/// What the agent tells a worker.
#[derive(Debug, Clone, Copy)]
pub enum WorkerCommand {
    /// The GPU's own screen is open: its dear figures are wanted.
    Focus(bool),
    Interval(Millis),
    /// An allocation failed: what is there is wanted before the tick.
    Now,
}

/// Starts the worker of one GPU. It ends when the other end of `orders` is dropped.
///
/// # Errors
/// When the system gives no thread.
pub fn spawn(
    index: u32,
    library: Arc<Library>,
    interval: Millis,
    orders: Receiver<WorkerCommand>,
    sections: Sender<Section>,
) -> std::io::Result<()> {
    let worker = Worker {
        index,
        library,
        interval,
        focused: false,
        orders,
        sections,
        gpu: Gpu {
            index,
            name: "GPU that never answered".into(),
            ..Gpu::default()
        },
    };
    std::thread::Builder::new()
        .name(format!("gpu {index}"))
        .spawn(move || worker.run())?;
    Ok(())
}

struct Worker {
    index: u32,
    library: Arc<Library>,
    interval: Millis,
    focused: bool,
    orders: Receiver<WorkerCommand>,
    sections: Sender<Section>,
    /// As it was last read; stays on the screen, marked, while the GPU is lost.
    gpu: Gpu,
}

/// Why a session with the GPU ended.
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
                End::Failed(error) => self.report_lost(&error),
            }
            if self.wait(RETRY).is_err() {
                return;
            }
        }
    }

    /// Opens the GPU and reads it until it is lost.
    fn session(&mut self) -> Result<std::convert::Infallible, End> {
        let nvml = self.library.acquire()?;
        let device = self.find(&nvml)?;
        let mut reader = Reader::new();
        let mut opened = device::open(&device, self.index)?;
        reader.read(&device, &mut opened, self.focused)?;
        // Only now: until it answers, what was last read of it stays.
        self.gpu = opened;
        loop {
            self.gpu.at = now_mono();
            self.gpu.health.state = HealthState::Answering;
            self.report().map_err(|_| End::Closed)?;
            // After the report: nobody waits for these, least of all the first frame.
            reader.read_seldom(&device, &mut self.gpu);
            self.wait_for_tick()?;
            reader.read(&device, &mut self.gpu, self.focused)?;
        }
    }

    fn report(&self) -> Result<(), SendError<Section>> {
        self.sections.send(Section::Gpu(Box::new(self.gpu.clone())))
    }

    /// By UUID once it is known, and never by its index again: after a GPU was lost the others may have moved up, and
    /// one of them would stand here twice.
    fn find<'n>(&self, nvml: &'n nvml_wrapper::Nvml) -> Result<Device<'n>, NvmlError> {
        if self.gpu.uuid == GpuUuid::default() {
            return nvml.device_by_index(self.index);
        }
        nvml.device_by_uuid(&*self.gpu.uuid.0)
    }

    fn report_lost(&mut self, error: &NvmlError) {
        if self.gpu.health.state != HealthState::Lost {
            self.gpu.health = Health {
                state: HealthState::Lost,
                since: Some(now_mono()),
                detail: Some(error.to_string()),
            };
        }
        // Its processes stay on the screen as they were: the kernel says when one ends.
        let _ = self.report();
    }

    /// Waits for the next whole multiple of the interval, so that all workers read at the same moment.
    fn wait_for_tick(&mut self) -> Result<(), End> {
        loop {
            let (now, interval) = (now_mono().0, self.interval.0.max(1));
            let left = (now / interval + 1) * interval - now;
            match self.wait(Duration::from_millis(left))? {
                Waited::Whole => return Ok(()),
                // A screen was opened, which should not stay empty until the next tick; or somebody asked.
                Waited::Wanted => return Ok(()),
                Waited::Changed => {}
            }
        }
    }

    fn wait(&mut self, time: Duration) -> Result<Waited, End> {
        match self.orders.recv_timeout(time) {
            Err(RecvTimeoutError::Timeout) => Ok(Waited::Whole),
            Err(RecvTimeoutError::Disconnected) => Err(End::Closed),
            Ok(WorkerCommand::Interval(interval)) => {
                self.interval = interval;
                Ok(Waited::Changed)
            }
            Ok(WorkerCommand::Focus(focused)) => {
                self.focused = focused;
                Ok(if focused {
                    Waited::Wanted
                } else {
                    Waited::Changed
                })
            }
            Ok(WorkerCommand::Now) => Ok(Waited::Wanted),
        }
    }
}

enum Waited {
    Whole,
    Wanted,
    Changed,
}

/// What one session remembers from tick to tick.
struct Reader {
    processes: Timer,
    utilization: Timer,
    board: Timer,
    slow: Timer,
    traffic: Timer,
    buffers: Buffers,
    before: Memory,
    /// Graphics contexts were there last time, so their list is read with every change, not only now and then.
    graphics_seen: bool,
    graphics: Timer,
    newest_sample: u64,
    counters: Option<device::Counters>,
}

impl Reader {
    fn new() -> Self {
        let mut utilization = Timer::default();
        // The first frame can do without it; it comes with the second.
        utilization.postpone(now_mono().0.saturating_sub(4_500));
        Self {
            processes: Timer::default(),
            utilization,
            board: Timer::default(),
            slow: Timer::default(),
            traffic: Timer::default(),
            buffers: Buffers::default(),
            before: Memory::default(),
            graphics_seen: false,
            graphics: Timer::default(),
            newest_sample: 0,
            counters: None,
        }
    }

    fn read(&mut self, device: &Device<'_>, gpu: &mut Gpu, focused: bool) -> Result<(), NvmlError> {
        let now = now_mono();
        device::tick(device, gpu)?;
        let changed = gpu.memory != self.before;
        self.before = gpu.memory.clone();
        if self
            .processes
            .due(schedule::PROCESSES, now.0, changed, focused)
        {
            let graphics =
                self.graphics
                    .due(schedule::PROCESSES, now.0, self.graphics_seen, focused);
            device::processes(
                device,
                gpu,
                graphics || self.graphics_seen,
                &mut self.buffers,
            );
            gpu.processes_at = Some(now);
            if graphics {
                self.graphics_seen = device::any_graphics(gpu);
            }
        }
        if self
            .utilization
            .due(schedule::PROCESS_UTILIZATION, now.0, false, focused)
        {
            self.newest_sample =
                device::utilization(device, gpu, self.newest_sample, &mut self.buffers);
            gpu.utilization_at = Some(now);
        }
        if self.traffic.due(schedule::TRAFFIC, now.0, false, focused) {
            gpu.traffic = Some(device::traffic(device, now, &mut self.counters));
        } else if !focused {
            (gpu.traffic, self.counters) = (None, None);
        }
        Ok(())
    }

    /// What changes rarely or never; it shows with the next report.
    fn read_seldom(&mut self, device: &Device<'_>, gpu: &mut Gpu) {
        let now = now_mono();
        if self.board.due(schedule::BOARD, now.0, false, false) {
            device::describe(device, gpu);
        }
        if self.slow.due(schedule::SLOW, now.0, false, false) {
            device::slow(device, gpu);
        }
    }
}
