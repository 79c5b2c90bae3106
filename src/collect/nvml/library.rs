//! The loaded NVML library: found, initialised, shared by the workers, and loaded anew after a driver reload.
//!
//! Workers hold the library while their GPU answers and let go of it when it does not. When all have let go it is
//! unloaded, so the next one to ask loads what is then on disk: that is how a driver upgrade is survived.

use std::ffi::OsString;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use nvml_wrapper::Nvml;
use nvml_wrapper::error::NvmlError;

/// Names another library to load in place of `libnvidia-ml.so.1`: for drivers in unusual places, and for tests.
pub const LIBRARY_VARIABLE: &str = "GPUTOP_NVML";

/// Where NVML is taken from, and the library while anyone holds it.
#[derive(Debug)]
pub struct Library {
    path: Option<OsString>,
    loaded: Mutex<Weak<Nvml>>,
}

impl Library {
    /// `path` is the value of [`LIBRARY_VARIABLE`]; without it the loader searches as for any program.
    pub fn new(path: Option<OsString>) -> Self {
        Self {
            path,
            loaded: Mutex::new(Weak::new()),
        }
    }

    /// The library, loaded and initialised if nobody holds it yet. May block for as long as the driver does.
    ///
    /// # Errors
    /// Whatever `dlopen` and `nvmlInit` say.
    pub fn acquire(&self) -> Result<Arc<Nvml>, NvmlError> {
        let mut loaded = self.loaded.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(nvml) = loaded.upgrade() {
            return Ok(nvml);
        }
        let nvml = Arc::new(match &self.path {
            Some(path) => Nvml::builder().lib_path(path).init()?,
            None => Nvml::init()?,
        });
        *loaded = Arc::downgrade(&nvml);
        Ok(nvml)
    }
}
