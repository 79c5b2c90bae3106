//! Device handles: numbers that are never dereferenced, so that a stale or foreign handle causes an error instead of a
//! crash.

use std::ptr;

use nvml_wrapper_sys::bindings::nvmlDevice_t;

use crate::scenario::{Code, Gpu, Mig, Scenario};

const BASE: usize = 0x4e56_4d4c_0000;
/// Number of handles per GPU: one for the GPU, the others for its MIG devices.
const SLOTS: usize = 256;

/// The device that a handle refers to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Device {
    pub gpu: usize,
    pub mig: Option<usize>,
}

impl Device {
    pub fn gpu(gpu: usize) -> Self {
        Self { gpu, mig: None }
    }

    pub fn handle(self) -> nvmlDevice_t {
        let slot = self.mig.map_or(0, |mig| mig + 1);
        ptr::without_provenance_mut(BASE + self.gpu * SLOTS + slot)
    }

    pub fn of(handle: nvmlDevice_t) -> Result<Self, Code> {
        let offset = handle.addr().checked_sub(BASE);
        let offset = offset.ok_or(Code::INVALID_ARGUMENT)?;
        if offset >= SLOTS * SLOTS {
            return Err(Code::INVALID_ARGUMENT);
        }
        Ok(Self { gpu: offset / SLOTS, mig: (offset % SLOTS).checked_sub(1) })
    }

    /// Returns the GPU, or the error for a lost GPU if the scenario no longer contains it.
    pub fn gpu_in(self, scenario: &Scenario) -> Result<&Gpu, Code> {
        scenario.gpu.get(self.gpu).ok_or(Code::GPU_IS_LOST)
    }

    pub fn mig_in(self, scenario: &Scenario) -> Result<Option<&Mig>, Code> {
        let Some(index) = self.mig else { return Ok(None) };
        let mig = self.gpu_in(scenario)?.mig.get(index);
        mig.map(Some).ok_or(Code::NOT_FOUND)
    }
}
