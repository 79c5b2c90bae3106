//! Xids as the driver reports them, on one thread that sleeps in `nvmlEventSetWait`.
//!
//! Only critical Xids are asked for: the set would otherwise deliver every change of a clock. All GPUs share the set.
//! The library is let go of as workers do: at the first error, and a cheap call after each wait finds out whether the
//! driver still answers, so that no old library is kept after a reload.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, TryRecvError};
use std::time::{Duration, Instant};

use nvml_wrapper::bitmasks::event::EventTypes;
use nvml_wrapper::enums::event::XidError;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::{Device, EventSet, Nvml};

use super::library::Library;
use super::raw;
use crate::collect::agent::Section;
use crate::model::text::visible;
use crate::model::units::GpuUuid;

/// How long one wait lasts: the thread is done with an agent that ended after this, and with a driver that was
/// reloaded before a worker tries again.
const WAIT: Duration = Duration::from_secs(2);
/// How long a driver that failed is left alone, as by a worker.
const RETRY: Duration = Duration::from_secs(5);
/// A GPU that could not be asked for its events is tried again after this.
const TRY_MISSING: Duration = Duration::from_secs(30);
/// What the driver calls an Xid of which it knows no number.
const UNKNOWN: u64 = 999;

/// Starts the thread. It ends when the other end of `alive` is dropped.
///
/// # Errors
/// When the system gives no thread.
pub fn spawn(
    library: Arc<Library>,
    alive: Receiver<()>,
    sections: Sender<Section>,
) -> std::io::Result<()> {
    std::thread::Builder::new()
        .name("xid".into())
        .spawn(move || {
            loop {
                match session(&library, &alive, &sections) {
                    Err(End::Closed) => return,
                    Err(End::Failed(error)) => tracing::debug!(%error, "no Xid events"),
                    Err(End::Again) => continue,
                    Ok(never) => match never {},
                }
                if alive.recv_timeout(RETRY) == Err(RecvTimeoutError::Disconnected) {
                    return;
                }
            }
        })?;
    Ok(())
}

/// Why a session with the driver ended.
enum End {
    Closed,
    Failed(NvmlError),
    /// GPUs came or could not be asked: open all of them anew.
    Again,
}

impl From<NvmlError> for End {
    fn from(error: NvmlError) -> Self {
        Self::Failed(error)
    }
}

fn session(
    library: &Library,
    alive: &Receiver<()>,
    sections: &Sender<Section>,
) -> Result<std::convert::Infallible, End> {
    let nvml = library.acquire()?;
    let count = nvml.device_count()?;
    let watch = register(&nvml, count)?;
    let begun = Instant::now();
    loop {
        let wait = u32::try_from(WAIT.as_millis()).unwrap_or(u32::MAX);
        match watch.set.wait(wait) {
            Ok(event) => {
                let number = match event.event_data {
                    Some(XidError::Value(number)) => number,
                    Some(XidError::Unknown) => UNKNOWN,
                    // Nothing else was asked for.
                    None => continue,
                };
                let gpu = watch
                    .gpus
                    .iter()
                    .find(|(device, _)| raw::is_same(device, &event.device))
                    .map(|(_, uuid)| uuid.clone());
                sections
                    .send(Section::Xid(gpu, number))
                    .map_err(|_| End::Closed)?;
            }
            Err(NvmlError::Timeout) => {}
            Err(error) => return Err(error.into()),
        }
        if alive.try_recv() == Err(TryRecvError::Disconnected) {
            return Err(End::Closed);
        }
        let try_missing = watch.is_any_missing && begun.elapsed() >= TRY_MISSING;
        if nvml.device_count()? != count || try_missing {
            return Err(End::Again);
        }
    }
}

/// An event set and whose events it delivers.
struct XidEvents<'n> {
    set: EventSet<'n>,
    gpus: Vec<(Device<'n>, GpuUuid)>,
    /// Some GPU could have events, but did not answer.
    is_any_missing: bool,
}

/// A set with every GPU that can have one. A GPU that refuses costs the set, so it is left out of the next.
fn register(nvml: &Nvml, count: u32) -> Result<XidEvents<'_>, NvmlError> {
    let mut refused = BTreeSet::new();
    loop {
        match register_without(nvml, count, &refused)? {
            Ok(watch) => return Ok(watch),
            Err(index) => refused.insert(index),
        };
    }
}

/// The inner error is the index of a GPU that refused.
fn register_without<'n>(
    nvml: &'n Nvml,
    count: u32,
    refused: &BTreeSet<u32>,
) -> Result<Result<XidEvents<'n>, u32>, NvmlError> {
    let mut set = nvml.create_event_set()?;
    let mut gpus = Vec::new();
    let mut is_any_missing = !refused.is_empty();
    for index in (0..count).filter(|index| !refused.contains(index)) {
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
    Ok(Ok(XidEvents {
        set,
        gpus,
        is_any_missing,
    }))
}

/// None when the GPU has no such events.
fn supporting(nvml: &Nvml, index: u32) -> Result<Option<(Device<'_>, GpuUuid)>, NvmlError> {
    let device = nvml.device_by_index(index)?;
    let types = match device.supported_event_types() {
        Err(NvmlError::NotSupported) => return Ok(None),
        types => types?,
    };
    let uuid = GpuUuid(visible(device.uuid()?.as_bytes(), 96).into());
    let has_it = types.contains(EventTypes::CRITICAL_XID_ERROR);
    Ok(has_it.then_some((device, uuid)))
}

/// How many of the GPUs report their Xids, and how many there are.
pub fn supported(nvml: &Nvml) -> (usize, u32) {
    let count = nvml.device_count().unwrap_or(0);
    let has_it = |index: &u32| matches!(supporting(nvml, *index), Ok(Some(_)));
    ((0..count).filter(has_it).count(), count)
}
