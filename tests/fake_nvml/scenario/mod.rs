//! The scenario file, which describes the simulated machine. Every key has a default, so a test sets only what it
//! needs. Unknown keys are errors, so that a typo is not silently ignored.
//!
//! ```toml
//! wobble = true                  # utilization, power, temperature and clocks move with every call
//! churn = 2.0                    # seconds after which every process's memory changes
//! latency = "h200"               # or [latency] preset = "h200", memory = 6, "*" = 1  (microseconds)
//!
//! [driver]
//! version = "580.159.03"
//! init = "driver_not_loaded"     # what nvmlInit returns; "ok" by default
//! wake_ms = 2000                 # the first nvmlInit sleeps this long, as without persistence mode
//! generation = 1                 # raise it: the driver was reloaded, nothing answers until nvmlInit is called again
//! errors = { process_name = "no_permission" }
//!
//! device_count = 4               # what the driver counts; the [[gpu]] have the handles
//!
//! [[gpu]]                        # an H200 but for the keys that are written
//! sm = 97
//! errors = { power = "not_supported", "*" = "gpu_is_lost" }
//! hang = ["memory"]              # does not return while this stands here
//! wake_ms = 2000                 # the GPU sleeps: calls about it wait this long after the first one of a session
//! mig = [{ profile = "3g.71gb", gi = 2, ci = 0 }]
//!
//! [[process]]
//! pid = 418
//! gpu = 0
//! used = "21.5 GiB"              # bytes, or a size, or "unavailable"
//! sm = 90
//!
//! [[event]]
//! gpu = 0
//! kind = "xid"
//! data = 31
//! ```
//!
//! The test harness also compiles this folder, to validate a scenario before it is used.

#[macro_use]
mod number;

mod call;
mod code;
mod driver;
mod event;
mod gpu;
mod latency;
mod process;
mod size;

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;

pub use call::Call;
pub use code::Code;
pub use driver::Driver;
pub use event::Event;
pub use gpu::{Gpu, Mig, Number};
pub use latency::Latency;
pub use process::{Kind, Process};

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Scenario {
    pub driver: Driver,
    pub latency: Latency,
    pub wobble: bool,
    pub churn: Option<f64>,
    pub gpu: Vec<Gpu>,
    pub process: Vec<Process>,
    pub event: Vec<Event>,
}

/// Calls that return an error instead of their value.
pub type Errors = BTreeMap<Call, Code>;

impl Scenario {
    pub fn parse(text: &str) -> Result<Self, String> {
        toml::from_str(text).map_err(|e| e.to_string())
    }

    /// The scenario if its file cannot be read: a driver that fails to initialize.
    pub fn unreadable() -> Self {
        Self { driver: Driver { init: Code::UNKNOWN, ..Driver::default() }, ..Self::default() }
    }

    /// Returns the error for `call`, on `gpu` if the call is about one.
    pub fn error(&self, call: Call, gpu: Option<usize>) -> Option<Code> {
        let of_gpu = gpu.and_then(|i| self.gpu.get(i)).map(|gpu| &gpu.errors);
        of_gpu
            .into_iter()
            .chain([&self.driver.errors])
            .find_map(|errors| call.lookup(|name| errors.get(&name).copied()))
    }

    pub fn hangs(&self, call: Call, gpu: Option<usize>) -> bool {
        let in_set = |set: &BTreeSet<Call>| call.lookup(|name| set.get(&name)).is_some();
        let of_gpu = gpu.and_then(|i| self.gpu.get(i));
        in_set(&self.driver.hang) || of_gpu.is_some_and(|gpu| in_set(&gpu.hang))
    }

    /// Returns the CPU time that the call takes, in microseconds.
    pub fn cost(&self, call: Call, gpu: Option<usize>) -> u64 {
        let of_gpu = gpu.and_then(|i| self.gpu.get(i)).map(|gpu| &gpu.latency);
        of_gpu.and_then(|latency| latency.of(call)).or_else(|| self.latency.of(call)).unwrap_or(0)
    }

    pub fn processes_on(&self, gpu: usize) -> impl Iterator<Item = &Process> {
        self.process.iter().filter(move |p| p.gpu == gpu)
    }
}
