//! Event sets to wait on. A set receives each event of the scenario once, in order. A test triggers an event by
//! appending it to the list.

use std::collections::BTreeMap;
use std::ffi::{c_uint, c_ulonglong};
use std::ptr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use nvml_wrapper_sys::bindings::{nvmlDevice_t, nvmlEventData_t, nvmlEventSet_t, nvmlReturn_t};

use crate::call::{Outcome, on_driver, on_gpu, put};
use crate::handle::Device;
use crate::scenario::{Call, Code, Event};
use crate::state;

/// Maximum delay before a waiting set sees an event. A real wait sleeps in the kernel and costs nothing. This one must
/// not wake often, because its CPU time would count as the waiting program's.
const LOOK_AGAIN: Duration = Duration::from_millis(200);

static SETS: Mutex<Sets> = Mutex::new(Sets { next: 1, open: BTreeMap::new() });

struct Sets {
    next: usize,
    open: BTreeMap<usize, Set>,
}

#[derive(Default)]
struct Set {
    /// Event types by GPU.
    registered: BTreeMap<usize, u64>,
    /// Number of events of the scenario that were delivered or skipped.
    passed: usize,
}

impl Set {
    fn next<'s>(&mut self, events: &'s [Event]) -> Option<&'s Event> {
        // If the scenario has fewer events than before, it is a new list.
        self.passed = self.passed.min(events.len());
        while let Some(event) = events.get(self.passed) {
            self.passed += 1;
            let types = self.registered.get(&event.gpu).copied().unwrap_or(0);
            if types & event.kind != 0 {
                return Some(event);
            }
        }
        None
    }
}

fn sets() -> MutexGuard<'static, Sets> {
    SETS.lock().unwrap_or_else(PoisonError::into_inner)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlEventSetCreate(out: *mut nvmlEventSet_t) -> nvmlReturn_t {
    on_driver(Call::EventCreate, |_| {
        let mut sets = sets();
        let id = sets.next;
        sets.next += 1;
        sets.open.insert(id, Set::default());
        // SAFETY: NVML's contract.
        unsafe { put(out, ptr::without_provenance_mut(id)) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlEventSetFree(set: nvmlEventSet_t) -> nvmlReturn_t {
    on_driver(Call::EventFree, |_| {
        let freed = sets().open.remove(&set.addr());
        freed.map(|_| ()).ok_or(Code::INVALID_ARGUMENT)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceRegisterEvents(
    device: nvmlDevice_t,
    types: c_ulonglong,
    set: nvmlEventSet_t,
) -> nvmlReturn_t {
    on_gpu(Call::EventRegister, device, |target| {
        if types & !target.gpu().event_types != 0 {
            return Err(Code::NOT_SUPPORTED);
        }
        let mut sets = sets();
        let set = sets.open.get_mut(&set.addr());
        let set = set.ok_or(Code::INVALID_ARGUMENT)?;
        *set.registered.entry(target.device.gpu).or_default() |= types;
        Ok(())
    })
}

values! {
    nvmlDeviceGetSupportedEventTypes: EventTypes -> c_ulonglong = |target| Ok(target.gpu().event_types);
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlEventSetWait_v2(
    set: nvmlEventSet_t,
    out: *mut nvmlEventData_t,
    timeout_ms: c_uint,
) -> nvmlReturn_t {
    on_driver(Call::EventWait, |_| {
        let deadline = Instant::now() + Duration::from_millis(u64::from(timeout_ms));
        loop {
            if let Some(data) = poll(set.addr())? {
                // SAFETY: NVML's contract.
                return unsafe { put(out, data) };
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(Code::TIMEOUT);
            }
            thread::sleep(left.min(LOOK_AGAIN));
        }
    })
}

fn poll(set: usize) -> Outcome<Option<nvmlEventData_t>> {
    let scenario = state::scenario();
    if let Some(error) = scenario.error(Call::EventWait, None) {
        return Err(error);
    }
    let mut sets = sets();
    let set = sets.open.get_mut(&set).ok_or(Code::INVALID_ARGUMENT)?;
    let event = set.next(&scenario.event);
    Ok(event.map(|event| nvmlEventData_t {
        device: Device::gpu(event.gpu).handle(),
        eventType: event.kind,
        eventData: event.data,
        gpuInstanceId: event.gi,
        computeInstanceId: event.ci,
    }))
}
