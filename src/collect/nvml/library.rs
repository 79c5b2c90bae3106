//! Loads, initializes and shares the NVML library, and reloads it after a driver reload.
//!
//! A worker holds a reference while its GPU responds, and drops the reference on failure. When the last reference is
//! dropped, the library is unloaded. The next `acquire` loads the version that is then on disk, so gputop survives a
//! driver upgrade.

use std::ffi::OsString;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use nvml_wrapper::Nvml;
use nvml_wrapper::error::NvmlError;

use super::raw;

/// Environment variable with the path of the NVML library to load instead of `libnvidia-ml.so.1`, for drivers in
/// unusual directories and for tests.
pub const LIBRARY_VARIABLE: &str = "GPUTOP_NVML";

/// An open session with the driver, which ends when its last owner drops it.
pub type Session = Arc<Nvml>;

/// Path of the NVML library, and the loaded library while a worker uses it.
#[derive(Debug)]
pub struct Library {
    path: Option<OsString>,
    loaded: Mutex<Weak<Nvml>>,
}

impl Library {
    /// Creates a library that is not loaded yet. `path` is the value of [`LIBRARY_VARIABLE`]. If `None`, the dynamic
    /// loader searches its default directories.
    pub fn new(path: Option<OsString>) -> Self {
        Self { path, loaded: Mutex::new(Weak::new()) }
    }

    /// Returns the NVML library. Loads and initializes it if no worker holds it. Blocks for as long as the driver does.
    pub fn acquire(&self) -> Result<Session, NvmlError> {
        let mut loaded = self.loaded.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(nvml) = loaded.upgrade() {
            return Ok(nvml);
        }
        let nvml = match &self.path {
            Some(path) => Nvml::builder().lib_path(path).init(),
            None => Nvml::init(),
        };
        // Also where initialization fails, because the error may be one that the wrapper does not know.
        raw::read_error_strings(self.path.as_deref());
        let nvml = Arc::new(nvml?);
        *loaded = Arc::downgrade(&nvml);
        Ok(nvml)
    }
}
