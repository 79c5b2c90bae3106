//! Diagnosis of a missing or broken NVIDIA driver, with the fixes that this user can apply.
//!
//! NVML's error is coarse ("driver not loaded"). System files provide the details (`system_files.rs`). The diagnosis is
//! a pure function of the error and of the files below a root directory, so every case is tested on a small directory
//! tree. The fixes are in `fix.rs`.
//!
//! Example: NVML reports `DriverNotLoaded`, `/proc/modules` lists nouveau but not nvidia, and the PCI bus has a device
//! from vendor 0x10de. The diagnosis is [`DriverTrouble::ModuleNotLoaded`] with `nouveau` set.

mod fix;
mod system_files;
mod trouble;

pub use self::trouble::{DriverTrouble, OwnRuntime};

use std::path::{Path, PathBuf};

use nvml_wrapper::error::NvmlError;

use self::system_files::SystemFacts;
use super::nvml::error_text;

/// `NVML_ERROR_GPU_NOT_FOUND`, which the wrapper does not know.
const GPU_NOT_FOUND: u32 = 28;

/// NVML's initialization error, reduced to the cases that the diagnosis distinguishes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NvmlFailure {
    /// The dynamic loader could not load libnvidia-ml.so.1. Contains the loader's message.
    Load(String),
    DriverNotLoaded,
    NoPermission,
    VersionMismatch,
    /// NVML initialized, but reports 0 GPUs.
    NoGpus,
    /// NVML does not initialize, because it finds no GPU (`NVML_ERROR_GPU_NOT_FOUND`).
    GpuNotFound,
    /// Any other error. Contains NVML's message.
    Other(String),
}

impl From<&NvmlError> for NvmlFailure {
    fn from(error: &NvmlError) -> Self {
        match error {
            NvmlError::LibloadingError(_)
            | NvmlError::FailedToLoadSymbol(_)
            | NvmlError::LibraryNotFound => Self::Load(error.to_string()),
            NvmlError::DriverNotLoaded => Self::DriverNotLoaded,
            NvmlError::NoPermission => Self::NoPermission,
            NvmlError::LibRmVersionMismatch => Self::VersionMismatch,
            NvmlError::UnexpectedVariant(GPU_NOT_FOUND) => Self::GpuNotFound,
            other => Self::Other(error_text(other)),
        }
    }
}

/// Diagnoses an NVML failure from the files below `root`, normally `/`.
pub fn diagnose_driver(root: &Path, failure: &NvmlFailure) -> DriverTrouble {
    classify(failure, &SystemFacts::read(root))
}

fn classify(failure: &NvmlFailure, facts: &SystemFacts) -> DriverTrouble {
    match failure {
        NvmlFailure::VersionMismatch => DriverTrouble::Mismatch {
            library: facts.library_version.clone(),
            kernel: facts.module_version.clone(),
        },
        NvmlFailure::NoGpus if facts.has_devices() || facts.module_version.is_some() => {
            no_gpus(facts)
        }
        NvmlFailure::NoPermission => no_permission(facts),
        NvmlFailure::GpuNotFound => DriverTrouble::SwitchedOff,
        NvmlFailure::Load(text) => not_loadable(text, facts),
        NvmlFailure::DriverNotLoaded | NvmlFailure::NoGpus => no_device(facts),
        NvmlFailure::Other(text) => other_error(text, facts),
    }
}

fn no_gpus(facts: &SystemFacts) -> DriverTrouble {
    match facts.container {
        Some(runtime) if !facts.has_gpu_file => DriverTrouble::NotPassedIn { runtime },
        _ => DriverTrouble::NoGpus { slurm: facts.is_slurm_job },
    }
}

fn no_permission(facts: &SystemFacts) -> DriverTrouble {
    match &facts.closed_device {
        Some(device) => DriverTrouble::NoPermission {
            path: device.path.clone(),
            mode: device.mode,
            group: device.group.clone(),
        },
        None => match facts.container.filter(|_| !facts.has_devices()) {
            Some(runtime) => DriverTrouble::NotPassedIn { runtime },
            None => DriverTrouble::Refused { has_devices: facts.has_devices() },
        },
    }
}

fn not_loadable(text: &str, facts: &SystemFacts) -> DriverTrouble {
    // Other messages mean that the file exists but is not a valid library: `file too short`, `wrong ELF class`.
    let is_absent = text.contains("No such file") || text.contains("couldn't be found");
    if !is_absent {
        return DriverTrouble::LibraryBroken(text.trim_end_matches('.').to_owned());
    }
    if facts.is_wsl {
        return wsl(facts);
    }
    if let Some(runtime) = facts.container {
        return in_container(runtime, facts);
    }
    match &facts.library {
        Some(path) => DriverTrouble::LibraryNotOnPath { path: path.clone() },
        None if !facts.has_hardware && facts.module_version.is_none() => DriverTrouble::NoHardware,
        None => DriverTrouble::NoLibrary,
    }
}

fn in_container(runtime: OwnRuntime, facts: &SystemFacts) -> DriverTrouble {
    if facts.has_gpu_file {
        return DriverTrouble::LibraryNotPassedIn { runtime };
    }
    // Containers see the host's PCI bus and the `/proc` entry of the kernel module.
    if facts.has_hardware || facts.module_version.is_some() {
        return DriverTrouble::NotPassedIn { runtime };
    }
    DriverTrouble::NoHardware
}

/// Diagnoses a failure in which the library was loaded but found no kernel module.
fn no_device(facts: &SystemFacts) -> DriverTrouble {
    if facts.is_wsl {
        return wsl(facts);
    }
    if let Some(runtime) = facts.container.filter(|_| !facts.has_devices()) {
        return in_container(runtime, facts);
    }
    if facts.module_version.is_some() {
        let path =
            PathBuf::from(if facts.has_control_file { "/dev/nvidia0" } else { "/dev/nvidiactl" });
        return DriverTrouble::NoDeviceFile { path };
    }
    if !facts.has_hardware {
        return DriverTrouble::NoHardware;
    }
    match &facts.kernel_without_module {
        Some(kernel) if !facts.has_nouveau => {
            DriverTrouble::ModuleNotBuilt { kernel: kernel.clone() }
        }
        _ => DriverTrouble::ModuleNotLoaded { nouveau: facts.has_nouveau },
    }
}

fn other_error(text: &str, facts: &SystemFacts) -> DriverTrouble {
    let text = text.trim_end_matches('.').to_owned();
    if facts.is_wsl && facts.has_wsl_device && facts.library.is_some() {
        return DriverTrouble::WslRefused(text);
    }
    if facts.is_wsl {
        return wsl(facts);
    }
    match facts.container {
        Some(runtime) if facts.has_hardware && !facts.has_gpu_file => {
            DriverTrouble::NotPassedIn { runtime }
        }
        // The driver library was passed in, but the device cgroup denies opening the device files.
        Some(runtime) => DriverTrouble::AccessLost { runtime, text },
        None => DriverTrouble::Other(text),
    }
}

fn wsl(facts: &SystemFacts) -> DriverTrouble {
    DriverTrouble::Wsl { has_device: facts.has_wsl_device, has_library: facts.library.is_some() }
}

#[cfg(test)]
mod tests;
