//! Explains CUDA error codes to users who want to probe a GPU: one sentence for each code, with a fix if possible.

/// Reason why no CUDA context was created.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ContextError {
    /// Too little GPU memory is free to create a CUDA context.
    NoContext,
    /// No CUDA context was created, for a reason other than a lack of memory. The reason is a phrase without a period.
    Refused(String),
}

const OUT_OF_MEMORY: i32 = 2;

/// Explains a failed driver call before or during the creation of a CUDA context. The codes are those of `CUresult` in
/// cuda.h.
pub fn context_error(call: &str, code: i32, name: &str) -> ContextError {
    let explanation = match code {
        OUT_OF_MEMORY => return ContextError::NoContext,
        34 => {
            "the libcuda that was found is the toolkit's stub, not a driver; remove its directory from LD_LIBRARY_PATH"
        }
        46 => {
            "the GPU accepts no more processes: it is in use and in exclusive mode, or its compute mode is prohibited"
        }
        100 => {
            "CUDA found no GPU: no permission for /dev/nvidia*, or the GPU is not assigned to this container or job"
        }
        101 => "CUDA cannot find this GPU: it is not assigned to this container or job",
        304 => {
            "the operating system rejected a driver call; check that /dev/nvidia* and /dev/nvidia-uvm exist and are readable"
        }
        802 => "the GPU fabric is not ready; check that nvidia-fabricmanager is running",
        803 => "driver and libcuda versions do not match: the driver was updated but not reloaded",
        804 => "this GPU does not support a libcuda that is newer than the kernel driver",
        805 => "MPS does not respond; check that nvidia-cuda-mps-control is running for this user",
        _ => return ContextError::Refused(format!("{call} failed with {name} ({code})")),
    };
    ContextError::Refused(format!("{explanation} ({call}: {code})"))
}

/// Returns an error message for a CUDA driver that lacks the function `call`.
pub fn missing(call: &str, version: i32) -> String {
    let (major, minor) = (version / 1_000, version % 1_000 / 10);
    format!("the driver is too old: it supports CUDA {major}.{minor} and has no {call}")
}
