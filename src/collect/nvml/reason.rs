//! Converts NVML errors to the reasons that screens show instead of a number.

use gputop_model::{Missing, Reading, Reason};
use nvml_wrapper::error::NvmlError;

/// Converts an NVML error to the reason why a value is missing.
pub fn missing(error: &NvmlError) -> Missing {
    match error {
        NvmlError::NotSupported => Reason::Unsupported.into(),
        NvmlError::FailedToLoadSymbol(_) | NvmlError::FunctionNotFound => {
            Missing::new(Reason::Unsupported, "needs a newer driver")
        }
        NvmlError::NoPermission => {
            Missing::new(Reason::Denied, "the driver requires root for this value")
        }
        NvmlError::GpuLost => Missing::new(Reason::Gone, "the driver has lost the GPU"),
        other => Missing::new(Reason::Unknown, error_text(other)),
    }
}

/// Returns NVML's description of an error, a phrase without a period.
pub fn error_text(error: &NvmlError) -> String {
    let NvmlError::UnexpectedVariant(code) = error else { return error.to_string() };
    let text = super::raw::error_string(*code);
    text.unwrap_or_else(|| format!("NVML reports error {code}, which gputop does not know"))
}

pub fn reading<T>(result: Result<T, NvmlError>) -> Reading<T> {
    result.map_err(|e| missing(&e)).into()
}

/// Returns true if the GPU or the driver as a whole is unavailable. Further calls fail until the GPU is reopened.
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
