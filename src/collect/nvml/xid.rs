//! Receives Xid errors from the NVIDIA driver, in one thread that waits in `nvmlEventSetWait`.
//!
//! Subscribes only to critical Xids, because other event types would wake the thread often, for example at every clock
//! change. All GPUs that are read share one event set; registering a sleeping one would wake it. The thread drops its library reference at the first error, as the workers do.
//! A cheap call after each wait checks that the driver still responds, so that an old library does not stay loaded
//! after a driver reload.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError};
use std::time::{Duration, Instant};

use gputop_model::text::visible;
use gputop_model::units::GpuUuid;
use nvml_wrapper::bitmasks::event::EventTypes;
use nvml_wrapper::enums::event::XidError;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::{Device, EventSet, Nvml};

use super::ReceiverClosed;
use super::library::Library;
use super::raw;

/// Timeout for each wait for events. After each wait, the thread checks whether the agent has exited. Shorter than
/// `RETRY_INTERVAL`, so that a driver reload is detected before a worker retries.
const WAIT_TIMEOUT: Duration = Duration::from_secs(2);
const RETRY_INTERVAL: Duration = Duration::from_secs(5);
const REGISTER_INTERVAL: Duration = Duration::from_secs(30);
/// Number used by the driver for an unknown Xid.
const UNKNOWN_XID: u64 = 999;

/// Starts the Xid thread, which passes each Xid's GPU and number to `report`. `gpus` receives the indices of the GPUs
/// whenever they change. The thread exits when its sender is dropped.
pub fn spawn(
    library: Arc<Library>,
    gpus: Receiver<BTreeSet<u32>>,
    report: impl Fn(Option<GpuUuid>, u64) -> Result<(), ReceiverClosed> + Send + 'static,
) -> std::io::Result<()> {
    std::thread::Builder::new().name("xid".into()).spawn(move || {
        let Ok(mut indices) = gpus.recv() else { return };
        loop {
            match session(&library, &mut indices, &gpus, &report) {
                Err(DriverSessionEnd::Closed) => return,
                Err(DriverSessionEnd::Failed(error)) => tracing::debug!(%error, "no Xid events"),
                Err(DriverSessionEnd::Again) => continue,
                Ok(never) => match never {},
            }
            match gpus.recv_timeout(RETRY_INTERVAL) {
                Ok(changed) => indices = changed,
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    })?;
    Ok(())
}

/// Reason why a session with the driver ended.
enum DriverSessionEnd {
    Closed,
    Failed(NvmlError),
    /// The GPUs must be reopened: they changed, or some could not be registered.
    Again,
}

impl From<NvmlError> for DriverSessionEnd {
    fn from(error: NvmlError) -> Self {
        Self::Failed(error)
    }
}

fn session(
    library: &Library,
    indices: &mut BTreeSet<u32>,
    gpus: &Receiver<BTreeSet<u32>>,
    report: &dyn Fn(Option<GpuUuid>, u64) -> Result<(), ReceiverClosed>,
) -> Result<std::convert::Infallible, DriverSessionEnd> {
    let nvml = library.acquire()?;
    let count = nvml.device_count()?;
    let events = register(&nvml, indices)?;
    let started = Instant::now();
    loop {
        let wait = u32::try_from(WAIT_TIMEOUT.as_millis()).unwrap_or(u32::MAX);
        match events.set.wait(wait) {
            Ok(event) => {
                let number = match event.event_data {
                    Some(XidError::Value(number)) => number,
                    Some(XidError::Unknown) => UNKNOWN_XID,
                    // Ignore other events, which are not expected because the thread subscribes only to Xids.
                    None => continue,
                };
                let gpu = events
                    .gpus
                    .iter()
                    .find(|(device, _)| raw::is_same(device, &event.device))
                    .map(|(_, uuid)| uuid.clone());
                report(gpu, number).map_err(|ReceiverClosed| DriverSessionEnd::Closed)?;
            }
            Err(NvmlError::Timeout) => {}
            Err(error) => return Err(error.into()),
        }
        match gpus.try_recv() {
            Ok(changed) => {
                *indices = changed;
                return Err(DriverSessionEnd::Again);
            }
            Err(TryRecvError::Empty) => {}
            Err(TryRecvError::Disconnected) => return Err(DriverSessionEnd::Closed),
        }
        let is_registration_due = events.is_any_missing && started.elapsed() >= REGISTER_INTERVAL;
        if nvml.device_count()? != count || is_registration_due {
            return Err(DriverSessionEnd::Again);
        }
    }
}

struct XidEvents<'n> {
    set: EventSet<'n>,
    gpus: Vec<(Device<'n>, GpuUuid)>,
    /// True if events could not be registered for a GPU that may support them.
    is_any_missing: bool,
}

/// Creates an event set with each of these GPUs that supports events. If registering a GPU fails, the set is destroyed, so a new
/// set is created without that GPU.
fn register<'n>(nvml: &'n Nvml, indices: &BTreeSet<u32>) -> Result<XidEvents<'n>, NvmlError> {
    let mut failed = BTreeSet::new();
    loop {
        match register_without(nvml, indices, &failed)? {
            Ok(events) => return Ok(events),
            Err(index) => failed.insert(index),
        };
    }
}

/// Creates an event set without the GPUs in `failed`. If another GPU cannot be registered, returns its index as the
/// inner error.
fn register_without<'n>(
    nvml: &'n Nvml,
    indices: &BTreeSet<u32>,
    failed: &BTreeSet<u32>,
) -> Result<Result<XidEvents<'n>, u32>, NvmlError> {
    let mut set = nvml.create_event_set()?;
    let mut gpus = Vec::new();
    let mut is_any_missing = !failed.is_empty();
    for &index in indices.difference(failed) {
        let (device, uuid) = match supporting(nvml, index) {
            Ok(Some(found)) => found,
            Ok(None) => continue,
            Err(_) => {
                is_any_missing = true;
                continue;
            }
        };
        set = match device.register_events(EventTypes::CRITICAL_XID_ERROR, set) {
            Ok(set) => set,
            Err(_) => return Ok(Err(index)),
        };
        gpus.push((device, uuid));
    }
    Ok(Ok(XidEvents { set, gpus, is_any_missing }))
}

/// Returns the GPU and its UUID, or `None` if the GPU does not support critical Xid events.
fn supporting(nvml: &Nvml, index: u32) -> Result<Option<(Device<'_>, GpuUuid)>, NvmlError> {
    let device = nvml.device_by_index(index)?;
    let types = match device.supported_event_types() {
        Err(NvmlError::NotSupported) => return Ok(None),
        types => types?,
    };
    let uuid = GpuUuid(visible(device.uuid()?.as_bytes(), 96).into());
    let reports_xids = types.contains(EventTypes::CRITICAL_XID_ERROR);
    Ok(reports_xids.then_some((device, uuid)))
}

/// Returns the number of GPUs that report Xids and the total number of GPUs.
pub fn supported(nvml: &Nvml) -> (usize, u32) {
    let count = nvml.device_count().unwrap_or(0);
    let events = register(nvml, &(0..count).collect());
    (events.map_or(0, |events| events.gpus.len()), count)
}
