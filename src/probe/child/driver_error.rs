//! What the driver's error codes mean for somebody who wants to probe a card: a sentence each, and what to do.

/// Why there is no context.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Trouble {
    /// The driver has no memory for one.
    NoContext,
    /// Anything else: a clause.
    Refused(String),
}

const OUT_OF_MEMORY: i32 = 2;

/// A failed call on the way to a context. Codes are those of `CUresult` in cuda.h.
pub fn trouble(call: &str, code: i32, name: &str) -> Trouble {
    let words = match code {
        OUT_OF_MEMORY => return Trouble::NoContext,
        34 => {
            "the libcuda that was found is the toolkit's stub and no driver; take its folder out of LD_LIBRARY_PATH"
        }
        46 => "the GPU takes no further process: it is in exclusive mode and in use, or prohibited",
        100 => {
            "CUDA sees no GPU here: no permission on /dev/nvidia*, or the GPU is not of this container or job"
        }
        101 => "CUDA does not know this GPU: it is not of this container or job",
        304 => {
            "the system refused the driver a call; are /dev/nvidia* and /dev/nvidia-uvm there and readable?"
        }
        802 => "the GPUs' fabric is not ready yet; is nvidia-fabricmanager running?",
        803 => "driver and libcuda do not fit together: the driver was updated and not reloaded",
        804 => "this libcuda is newer than the kernel's driver and this GPU does not support that",
        805 => "MPS does not answer; is nvidia-cuda-mps-control running for this user?",
        _ => return Trouble::Refused(format!("{call} failed with {name} ({code})")),
    };
    Trouble::Refused(format!("{words} ({call}: {code})"))
}

/// A call that this driver does not have.
pub fn missing(call: &str, version: i32) -> String {
    let (major, minor) = (version / 1_000, version % 1_000 / 10);
    format!("the driver here is too old for this: it knows CUDA {major}.{minor} and has no {call}")
}
