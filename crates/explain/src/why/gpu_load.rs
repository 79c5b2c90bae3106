//! Figures of a GPU over a time window.

use gputop_model::gpu::{Gpu, GpuProcess, Throttle};
use gputop_model::reading::Reading;
use gputop_model::units::{Bytes, Percent};

/// Means of a GPU's figures over a window. `None` for what the GPU or the driver does not provide.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct GpuLoad {
    pub index: u32,
    /// Share of the time in which a kernel ran, in percent. 100 does not mean that the GPU is busy.
    pub utilization: Option<f64>,
    /// Share of the SMs that worked. Only from Hopper on.
    pub sm_active: Option<f64>,
    pub tensor_active: Option<f64>,
    /// Share of the maximum rate of the device memory.
    pub memory_rate: Option<f64>,
    pub watts: Option<f64>,
    pub watts_limit: Option<f64>,
    pub sm_clock: Option<f64>,
    pub max_sm_clock: Option<f64>,
    pub temperature: Option<f64>,
    /// Bytes per second from the host.
    pub pcie_rx: Option<f64>,
    /// Reason why heat or the power supply slowed the GPU down, and the share of the window, from 0 to 1.
    pub slowed: Option<(Throttle, f64)>,
    /// Memory of the process on this GPU.
    pub held: Option<Bytes>,
    /// True if the process used no SM of any GPU in the window.
    pub is_unused: bool,
    /// Number of processes that used the SMs lately. A process with a context may use none.
    pub processes: usize,
}

impl GpuLoad {
    /// Returns the means of several readings of a GPU, oldest first. `gpu` is the newest.
    pub fn over<'a>(readings: impl IntoIterator<Item = &'a GpuSample>, gpu: &Gpu) -> Self {
        let mut sum = Sum::default();
        readings.into_iter().for_each(|reading| sum.add(reading));
        sum.load(gpu)
    }

    /// Returns the best measure of the work of the GPU, in percent.
    pub fn busy(&self) -> Option<f64> {
        self.sm_active.or(self.utilization)
    }

    /// Returns power as a share of the limit, from 0 to 1.
    pub fn power_share(&self) -> Option<f64> {
        Some(self.watts? / self.watts_limit.filter(|limit| *limit > 0.0)?)
    }
}

/// The figures of a GPU in one frame.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct GpuSample {
    utilization: Option<f64>,
    sm_active: Option<f64>,
    tensor_active: Option<f64>,
    memory_rate: Option<f64>,
    watts: Option<f64>,
    sm_clock: Option<f64>,
    temperature: Option<f64>,
    pcie_rx: Option<f64>,
    slowed: Vec<Throttle>,
}

impl GpuSample {
    pub fn of(gpu: &Gpu) -> Self {
        let traffic = gpu.traffic.as_ref();
        let percent = |reading: &Reading<Percent>| reading.get().map(|percent| percent.0);
        let is_hot = |reason: &&Throttle| {
            matches!(
                reason,
                Throttle::HwSlowdown
                    | Throttle::SwThermal
                    | Throttle::HwThermal
                    | Throttle::HwPowerBrake
            )
        };
        Self {
            utilization: percent(&gpu.sm),
            sm_active: traffic.and_then(|traffic| percent(&traffic.sm_active)),
            tensor_active: traffic.and_then(|traffic| percent(&traffic.tensor_active)),
            memory_rate: traffic.and_then(|traffic| percent(&traffic.memory_rate)),
            watts: gpu.power.get().map(|power| f64::from(power.0) / 1e3),
            sm_clock: gpu.sm_clock.get().map(|clock| f64::from(clock.0)),
            temperature: gpu.temperature.get().map(|degrees| degrees.0.into()),
            pcie_rx: traffic.and_then(|traffic| traffic.pcie_rx.get()).map(|rate| rate.0 as f64),
            slowed: gpu.throttle.value().into_iter().flatten().filter(is_hot).copied().collect(),
        }
    }
}

/// Sums of the figures of one GPU.
#[derive(Debug, Default)]
struct Sum {
    readings: u32,
    utilization: Mean,
    sm_active: Mean,
    tensor_active: Mean,
    memory_rate: Mean,
    watts: Mean,
    sm_clock: Mean,
    temperature: Mean,
    pcie_rx: Mean,
    slowed: Vec<(Throttle, u32)>,
}

#[derive(Debug, Clone, Copy, Default)]
struct Mean {
    sum: f64,
    count: u32,
}

impl Mean {
    fn add(&mut self, value: Option<f64>) {
        if let Some(value) = value {
            self.sum += value;
            self.count += 1;
        }
    }

    fn get(self) -> Option<f64> {
        (self.count > 0).then(|| self.sum / f64::from(self.count))
    }
}

impl Sum {
    fn add(&mut self, reading: &GpuSample) {
        self.readings += 1;
        self.utilization.add(reading.utilization);
        self.sm_active.add(reading.sm_active);
        self.tensor_active.add(reading.tensor_active);
        self.memory_rate.add(reading.memory_rate);
        self.watts.add(reading.watts);
        self.sm_clock.add(reading.sm_clock);
        self.temperature.add(reading.temperature);
        self.pcie_rx.add(reading.pcie_rx);
        for reason in &reading.slowed {
            match self.slowed.iter_mut().find(|(known, _)| known == reason) {
                Some((_, count)) => *count += 1,
                None => self.slowed.push((*reason, 1)),
            }
        }
    }

    /// Returns the means. `gpu` is the newest reading.
    fn load(&self, gpu: &Gpu) -> GpuLoad {
        let slowed = self.slowed.iter().max_by_key(|(_, count)| *count);
        GpuLoad {
            index: gpu.index,
            utilization: self.utilization.get(),
            sm_active: self.sm_active.get(),
            tensor_active: self.tensor_active.get(),
            memory_rate: self.memory_rate.get(),
            watts: self.watts.get(),
            watts_limit: gpu.power_cap.get().map(|power| f64::from(power.0) / 1e3),
            sm_clock: self.sm_clock.get(),
            max_sm_clock: gpu.board.max_sm_clock.get().map(|clock| f64::from(clock.0)),
            temperature: self.temperature.get(),
            pcie_rx: self.pcie_rx.get(),
            slowed: slowed
                .map(|(why, count)| (*why, f64::from(*count) / f64::from(self.readings.max(1)))),
            held: None,
            is_unused: false,
            processes: gpu.processes.value().into_iter().flatten().filter(uses_sms).count(),
        }
    }
}

fn uses_sms(process: &&GpuProcess) -> bool {
    process.sm.get().is_some_and(|share| share.0 > 0.0)
}
