//! Why there is no NVIDIA driver here, told apart exactly, and what this user can do about it.
//!
//! NVML says little ("driver not loaded"); the files around it say the rest (`signs.rs`). The judgement is a pure
//! function of both, over a root directory, so every case is tested on a small tree. What to do is in `fix.rs`.
//!
//! One case: NVML reports `DriverNotLoaded`; `/proc/modules` lists nouveau and no nvidia; the PCI bus has a device
//! of vendor 0x10de. Then it is [`DriverTrouble::ModuleNotLoaded`] with nouveau in the way.

mod fix;
mod system_files;

use std::path::{Path, PathBuf};

use nvml_wrapper::error::NvmlError;

use self::system_files::Signs;

/// What NVML said at the start, as far as it matters here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NvmlFailure {
    /// The loader could not load libnvidia-ml.so.1; its own words.
    Load(String),
    DriverNotLoaded,
    NoPermission,
    VersionMismatch,
    /// It started and counts no GPU.
    NoGpus,
    /// Any other error; its own words.
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
            other => Self::Other(other.to_string()),
        }
    }
}

/// What runs the container that this is inside of, as far as it changes the advice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Runtime {
    Docker,
    Podman,
    Kubernetes,
    /// Apptainer or Singularity.
    Apptainer,
    Other,
}

/// What is missing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DriverTrouble {
    #[error("This machine has no NVIDIA GPU: no PCI device of vendor 10de is present.")]
    NoHardware,
    #[error("The NVIDIA driver is not installed: its library libnvidia-ml.so.1 was not found.")]
    NoLibrary,
    #[error("The NVIDIA driver library {} is not where the loader looks for it.", path.display())]
    LibraryNotOnPath { path: PathBuf },
    #[error("The NVIDIA driver library cannot be loaded: {0}.")]
    LibraryBroken(String),
    #[error("The NVIDIA kernel module is not loaded{}.", if *nouveau { ": the nouveau driver has taken the GPU" } else { "" })]
    ModuleNotLoaded { nouveau: bool },
    #[error("The NVIDIA kernel module is not built for the running kernel {kernel}.")]
    ModuleNotBuilt { kernel: String },
    #[error("The NVIDIA kernel module is loaded but its device file {} is missing.", path.display())]
    NoDeviceFile { path: PathBuf },
    #[error("{}", fix::mismatch(library.as_deref(), kernel.as_deref()))]
    Mismatch {
        library: Option<String>,
        kernel: Option<String>,
    },
    #[error("No permission to open {} (mode {mode:04o}, group {group}).", path.display())]
    NoPermission {
        path: PathBuf,
        mode: u32,
        group: String,
    },
    #[error("The driver refuses this user, although the device files are open to all.")]
    Refused,
    #[error("The NVIDIA driver works but shows no GPU here{}.", if *slurm { ": this Slurm job has none" } else { "" })]
    NoGpus { slurm: bool },
    #[error("The GPUs of this machine were not passed into this container.")]
    NotPassedIn { runtime: Runtime },
    #[error(
        "The GPUs were passed into this container without the driver's library libnvidia-ml.so.1."
    )]
    LibraryNotPassedIn { runtime: Runtime },
    #[error("This container has lost its access to the GPUs since it was started: {text}.")]
    AccessLost { runtime: Runtime, text: String },
    #[error("{}", fix::wsl(*has_device, *has_library))]
    Wsl { has_device: bool, has_library: bool },
    #[error("The NVIDIA driver did not start: {0}.")]
    Other(String),
}

impl DriverTrouble {
    /// One sentence that says what is missing.
    pub fn reason(&self) -> String {
        self.to_string()
    }

    /// What to do, best first: a command alone on its line, or a clause that ends in one.
    pub fn fix(&self, user_is_root: bool) -> Vec<String> {
        fix::of(self, user_is_root)
    }
}

/// Judges the failure by what is to be seen below `root`, normally `/`.
pub fn diagnose_driver(root: &Path, failure: &NvmlFailure) -> DriverTrouble {
    judge(failure, &Signs::read(root))
}

fn judge(failure: &NvmlFailure, signs: &Signs) -> DriverTrouble {
    match failure {
        NvmlFailure::VersionMismatch => DriverTrouble::Mismatch {
            library: signs.library_version.clone(),
            kernel: signs.module_version.clone(),
        },
        NvmlFailure::NoGpus if signs.has_devices() || signs.module_version.is_some() => {
            no_gpus(signs)
        }
        NvmlFailure::NoPermission => refused(signs),
        NvmlFailure::Load(text) => not_loadable(text, signs),
        NvmlFailure::DriverNotLoaded | NvmlFailure::NoGpus => no_device(signs),
        NvmlFailure::Other(text) => unclear(text, signs),
    }
}

fn no_gpus(signs: &Signs) -> DriverTrouble {
    match signs.container {
        Some(runtime) if !signs.has_gpu_file => DriverTrouble::NotPassedIn { runtime },
        _ => DriverTrouble::NoGpus {
            slurm: signs.is_slurm_job,
        },
    }
}

fn refused(signs: &Signs) -> DriverTrouble {
    match &signs.closed_device {
        Some(device) => DriverTrouble::NoPermission {
            path: device.path.clone(),
            mode: device.mode,
            group: device.group.clone(),
        },
        None => DriverTrouble::Refused,
    }
}

fn not_loadable(text: &str, signs: &Signs) -> DriverTrouble {
    // The loader's words for a file that is there but no library: `file too short`, `wrong ELF class`.
    let is_absent = text.contains("No such file") || text.contains("couldn't be found");
    if !is_absent {
        return DriverTrouble::LibraryBroken(text.trim_end_matches('.').to_owned());
    }
    if signs.is_wsl {
        return wsl(signs);
    }
    if let Some(runtime) = signs.container {
        return in_container(runtime, signs);
    }
    match &signs.library {
        Some(path) => DriverTrouble::LibraryNotOnPath { path: path.clone() },
        None if !signs.has_hardware && signs.module_version.is_none() => DriverTrouble::NoHardware,
        None => DriverTrouble::NoLibrary,
    }
}

fn in_container(runtime: Runtime, signs: &Signs) -> DriverTrouble {
    if signs.has_gpu_file {
        return DriverTrouble::LibraryNotPassedIn { runtime };
    }
    // The bus and the module's /proc entry are the host's, also in here.
    if signs.has_hardware || signs.module_version.is_some() {
        return DriverTrouble::NotPassedIn { runtime };
    }
    DriverTrouble::NoHardware
}

/// The library is here and finds no kernel module behind it.
fn no_device(signs: &Signs) -> DriverTrouble {
    if signs.is_wsl {
        return wsl(signs);
    }
    if let Some(runtime) = signs.container.filter(|_| !signs.has_devices()) {
        return in_container(runtime, signs);
    }
    if signs.module_version.is_some() {
        let path = PathBuf::from(if signs.has_control_file {
            "/dev/nvidia0"
        } else {
            "/dev/nvidiactl"
        });
        return DriverTrouble::NoDeviceFile { path };
    }
    if !signs.has_hardware {
        return DriverTrouble::NoHardware;
    }
    match &signs.kernel_without_module {
        Some(kernel) if !signs.has_nouveau => DriverTrouble::ModuleNotBuilt {
            kernel: kernel.clone(),
        },
        _ => DriverTrouble::ModuleNotLoaded {
            nouveau: signs.has_nouveau,
        },
    }
}

fn unclear(text: &str, signs: &Signs) -> DriverTrouble {
    let text = text.trim_end_matches('.').to_owned();
    if signs.is_wsl {
        return wsl(signs);
    }
    match signs.container {
        // The files are still there while the device cgroup no longer lets them be opened.
        Some(runtime) if signs.has_gpu_file => DriverTrouble::AccessLost { runtime, text },
        Some(runtime) if signs.has_hardware => DriverTrouble::NotPassedIn { runtime },
        _ => DriverTrouble::Other(text),
    }
}

fn wsl(signs: &Signs) -> DriverTrouble {
    DriverTrouble::Wsl {
        has_device: signs.has_wsl_device,
        has_library: signs.library.is_some(),
    }
}

#[cfg(test)]
mod tests;
