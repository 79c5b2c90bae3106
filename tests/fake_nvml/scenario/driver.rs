//! Properties of the whole driver.

use std::collections::BTreeSet;

use serde::Deserialize;

use super::{Call, Code, Errors};

#[derive(Debug, Clone, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Driver {
    pub version: String,
    pub nvml_version: String,
    /// Number of GPUs that the driver counts, if not all of them have handles or more do.
    pub device_count: Option<u32>,
    /// CUDA's version number: 13000 is 13.0.
    pub cuda: i32,
    /// What `nvmlInit` returns.
    pub init: Code,
    /// Milliseconds for which the first `nvmlInit` of the process sleeps, and each one after the last session ended.
    pub wake_ms: u64,
    /// Changes when the driver is reloaded, which invalidates earlier handles and sessions.
    pub generation: u32,
    /// Errors for calls about no GPU, and the default for calls about a GPU.
    pub errors: Errors,
    pub hang: BTreeSet<Call>,
}

impl Default for Driver {
    fn default() -> Self {
        Self {
            version: "580.159.03".into(),
            nvml_version: "13.580.159.03".into(),
            device_count: None,
            cuda: 13000,
            init: Code::OK,
            wake_ms: 0,
            generation: 0,
            errors: Errors::new(),
            hang: BTreeSet::new(),
        }
    }
}
