//! Thread that loads the driver, counts its GPUs, and leaves both alone while all GPUs sleep.
//!
//! A GPU that nothing uses may be suspended (`nvml/sleep.rs`). NVML would wake it and keep it awake, so it is started
//! only once a GPU is awake, or on request. When the agent finds that nothing has used the GPUs for a while, it stops
//! all readers of the driver ([`DriverCommand::Release`]). If the GPUs do not fall asleep then, something else keeps
//! them awake: they are read again, and released after a longer time.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};

use super::section::Section;
use crate::collect::driver::{NvmlFailure, diagnose_driver};
use crate::collect::nvml::library::{Library, Session};
use crate::collect::nvml::sleep::PciGpu;
use gputop_model::text::visible;
use gputop_model::{Driver, Missing, Reading, Reason};

/// Interval for trying to load the driver or, once it is loaded, for counting its GPUs.
const DRIVER_INTERVAL: Duration = Duration::from_secs(10);
/// Interval for checking whether a sleeping GPU was woken.
const SLEEP_INTERVAL: Duration = Duration::from_secs(1);
/// Time in which released GPUs must fall asleep.
const SUSPEND_TIMEOUT: Duration = Duration::from_secs(30);
/// Time without use after which the GPUs are released.
pub const MIN_IDLE: Duration = Duration::from_mins(1);
/// Limit for the idle time, which doubles each time that the GPUs do not fall asleep.
const MAX_IDLE: Duration = Duration::from_hours(1);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum DriverCommand {
    /// Unload the driver, so that the GPUs can sleep. The sender has stopped its readers.
    Release,
    /// Load the driver although the GPUs sleep.
    Wake,
}

/// The driver and the GPUs as last seen.
#[derive(Debug)]
pub struct FoundDriver {
    pub driver: Driver,
    /// The session in which the driver was asked. Readers of its GPUs take it over, so that the driver is not unloaded
    /// in between. `None` if it was not started.
    pub session: Option<Session>,
    /// Sleeping GPUs by NVML index. No reader may be started for them.
    pub asleep: Vec<(u32, PciGpu)>,
    /// Time without use after which to release the GPUs. `None` if they cannot sleep.
    pub idle_limit: Option<Duration>,
}

pub(super) struct DriverLoader {
    pub(super) library: Arc<Library>,
    pub(super) sys_root: PathBuf,
    /// True if GPUs are woken and never released.
    pub(super) keeps_awake: bool,
    /// Time without use after which the GPUs are released.
    pub(super) idle_limit: Duration,
}

/// Reason to leave the driver alone, if any.
#[derive(Debug, Clone, Copy)]
enum Rest {
    No,
    /// A wake-up was requested. Lasts until the GPUs are released.
    Woken,
    /// The readers were stopped at this time, and the GPUs are not asleep yet.
    Released(Instant),
    Asleep,
}

impl Rest {
    /// Returns true if the driver must not be started.
    fn is_quiet(self) -> bool {
        matches!(self, Self::Released(_) | Self::Asleep)
    }
}

impl DriverLoader {
    pub(super) fn run(self, commands: &Receiver<DriverCommand>, sections: &Sender<Section>) {
        let (mut rest, mut idle_limit) = (Rest::No, self.idle_limit);
        let mut gpus = Vec::new();
        loop {
            // While the GPUs sleep, only their state is read again.
            if !rest.is_quiet() && !self.keeps_awake {
                gpus = PciGpu::list(&self.sys_root);
            }
            rest = self.rest(rest, &gpus, &mut idle_limit);
            let (found, interval) = if rest.is_quiet() {
                (all_asleep(gpus.clone()), SLEEP_INTERVAL)
            } else {
                (self.find(rest, gpus.clone(), idle_limit), DRIVER_INTERVAL)
            };
            if sections.send(Section::Driver(Box::new(found))).is_err() {
                return;
            }
            match commands.recv_timeout(interval) {
                Ok(DriverCommand::Release) => rest = Rest::Released(Instant::now()),
                Ok(DriverCommand::Wake) => rest = Rest::Woken,
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    fn rest(&self, before: Rest, gpus: &[PciGpu], idle_limit: &mut Duration) -> Rest {
        let is_asleep = !gpus.is_empty() && gpus.iter().all(PciGpu::is_asleep);
        match before {
            Rest::Woken => Rest::Woken,
            _ if is_asleep => {
                *idle_limit = self.idle_limit;
                Rest::Asleep
            }
            Rest::Released(at) if !gpus.is_empty() && at.elapsed() < SUSPEND_TIMEOUT => before,
            Rest::Released(_) => {
                *idle_limit = (*idle_limit * 2).min(MAX_IDLE);
                Rest::No
            }
            Rest::No | Rest::Asleep => Rest::No,
        }
    }

    fn find(&self, rest: Rest, gpus: Vec<PciGpu>, idle_limit: Duration) -> FoundDriver {
        let (driver, session) = find_driver(&self.library);
        let may_sleep = !gpus.is_empty() && gpus.iter().all(PciGpu::may_sleep);
        let idle_limit = may_sleep.then_some(idle_limit);
        // Indices are known only if the driver uses every GPU on the bus.
        let is_known = driver.gpus.get().is_some_and(|count| count as usize == gpus.len());
        let is_left_alone = is_known && !matches!(rest, Rest::Woken);
        let is_asleep = |(_, gpu): &(u32, PciGpu)| is_left_alone && gpu.is_asleep();
        let asleep = (0..).zip(gpus).filter(is_asleep).collect();
        FoundDriver { driver, session, asleep, idle_limit }
    }
}

fn all_asleep(gpus: Vec<PciGpu>) -> FoundDriver {
    let why = Missing::new(Reason::NotRead, "the driver is not asked while all GPUs are asleep");
    let driver = Driver {
        version: Reading::Missing(why.clone()),
        cuda: Reading::Missing(why),
        gpus: u32::try_from(gpus.len()).unwrap_or(u32::MAX).into(),
    };
    let asleep = (0..).zip(gpus).collect();
    FoundDriver { driver, session: None, asleep, idle_limit: None }
}

fn find_driver(library: &Library) -> (Driver, Option<Session>) {
    let missing = |failure: &NvmlFailure| {
        let diagnosis = diagnose_driver(Path::new("/"), failure);
        let reason = if *failure == NvmlFailure::NoPermission {
            Reason::Denied
        } else {
            Reason::Unsupported
        };
        Missing::new(reason, diagnosis.reason())
    };
    let nvml = match library.acquire() {
        Ok(nvml) => nvml,
        Err(error) => {
            let why = missing(&NvmlFailure::from(&error));
            let driver = Driver {
                version: Reading::Missing(why.clone()),
                cuda: Reading::Missing(why.clone()),
                gpus: Reading::Missing(why),
            };
            return (driver, None);
        }
    };
    let reading =
        |r: Result<String, _>| Reading::from(r.map_err(|e| crate::collect::nvml::missing(&e)));
    let driver = Driver {
        version: reading(nvml.sys_driver_version().map(|v| visible(v.as_bytes(), 40))),
        cuda: reading(
            nvml.sys_cuda_driver_version().map(|v| format!("{}.{}", v / 1_000, v % 1_000 / 10)),
        ),
        gpus: match nvml.device_count() {
            Ok(0) => Reading::Missing(missing(&NvmlFailure::NoGpus)),
            Ok(count) => count.into(),
            Err(error) => Reading::Missing(missing(&NvmlFailure::from(&error))),
        },
    };
    (driver, Some(nvml))
}
