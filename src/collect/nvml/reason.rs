//! NVML's errors as reasons: what a screen shows in a number's place.

use nvml_wrapper::error::NvmlError;

use crate::model::reading::{Missing, Reading, Reason};

/// The reason for one value.
pub fn missing(error: &NvmlError) -> Missing {
    match error {
        NvmlError::NotSupported => Reason::Unsupported.into(),
        NvmlError::FailedToLoadSymbol(_) | NvmlError::FunctionNotFound => {
            Missing::new(Reason::Unsupported, "this driver is too old for it")
        }
        NvmlError::NoPermission => Missing::new(Reason::Denied, "the driver shows it to root only"),
        NvmlError::GpuLost => Missing::new(Reason::Gone, "the driver has lost the GPU"),
        other => Missing::new(Reason::Unknown, other.to_string()),
    }
}

pub fn reading<T>(result: Result<T, NvmlError>) -> Reading<T> {
    result.map_err(|e| missing(&e)).into()
}

/// True when the GPU or the driver is gone as a whole, so that asking on is pointless until it is opened anew.
pub fn is_fatal(error: &NvmlError) -> bool {
    matches!(
        error,
        NvmlError::GpuLost
            | NvmlError::ResetRequired
            | NvmlError::Uninitialized
            | NvmlError::DriverNotLoaded
            | NvmlError::LibRmVersionMismatch
            | NvmlError::InvalidArg
    )
}
