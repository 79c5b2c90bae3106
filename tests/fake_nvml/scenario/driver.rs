//! The driver as a whole.

use std::collections::BTreeSet;

use serde::Deserialize;

use super::{Call, Code, Errors};

#[derive(Debug, Clone, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Driver {
    pub version: String,
    pub nvml_version: String,
    /// As CUDA counts: 13000 is 13.0.
    pub cuda: i32,
    /// What `nvmlInit` returns.
    pub init: Code,
    /// A driver that was reloaded has another generation: handles and sessions of the former one are dead.
    pub generation: u32,
    /// For the calls about no GPU; those about one fall back to it.
    pub errors: Errors,
    pub hang: BTreeSet<Call>,
}

impl Default for Driver {
    fn default() -> Self {
        Self {
            version: "580.159.03".into(),
            nvml_version: "13.580.159.03".into(),
            cuda: 13000,
            init: Code::OK,
            generation: 0,
            errors: Errors::new(),
            hang: BTreeSet::new(),
        }
    }
}
