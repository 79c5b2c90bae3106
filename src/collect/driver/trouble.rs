//! Problems with the driver, and the container in which gputop runs.

use std::path::PathBuf;

use super::fix;

/// Runtime of the container in which gputop runs. Runtimes with the same fixes are not distinguished.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OwnRuntime {
    Docker,
    Podman,
    Kubernetes,
    /// Apptainer or Singularity.
    Apptainer,
    Other,
}

/// Problem with the NVIDIA driver. Its message is one sentence.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DriverTrouble {
    #[error("No NVIDIA GPU found: this machine has no PCI device of vendor 10de.")]
    NoHardware,
    #[error("The NVIDIA driver is not installed: its library libnvidia-ml.so.1 was not found.")]
    NoLibrary,
    #[error("The NVIDIA driver library {} is not on the library search path.", path.display())]
    LibraryNotOnPath { path: PathBuf },
    #[error("The NVIDIA driver library cannot be loaded: {0}.")]
    LibraryBroken(String),
    #[error("The NVIDIA kernel module is not loaded{}.", if *nouveau { ": the nouveau driver is using the GPU" } else { "" })]
    ModuleNotLoaded { nouveau: bool },
    #[error("The NVIDIA kernel module is not built for the running kernel {kernel}.")]
    ModuleNotBuilt { kernel: String },
    #[error("The NVIDIA kernel module is loaded, but its device file {} is missing.", path.display())]
    NoDeviceFile { path: PathBuf },
    #[error("{}", fix::mismatch(library.as_deref(), kernel.as_deref()))]
    Mismatch { library: Option<String>, kernel: Option<String> },
    #[error("No permission to open {} (mode {mode:04o}, group {group}).", path.display())]
    NoPermission { path: PathBuf, mode: u32, group: String },
    #[error("The driver denies access{}.", if *has_devices { ", although every user can open the device files" } else { ", and there are no NVIDIA device files" })]
    Refused { has_devices: bool },
    #[error("The NVIDIA driver works but reports no GPU{}.", if *slurm { ": this Slurm job has no GPU allocated" } else { "" })]
    NoGpus { slurm: bool },
    #[error("This container has no access to the GPUs of this machine.")]
    NotPassedIn { runtime: OwnRuntime },
    #[error(
        "This container has access to the GPUs but lacks the driver library libnvidia-ml.so.1."
    )]
    LibraryNotPassedIn { runtime: OwnRuntime },
    #[error(
        "This container lost access to the GPUs, as after `systemctl daemon-reload` on the host: {text}."
    )]
    AccessLost { runtime: OwnRuntime, text: String },
    #[error("{}", fix::wsl(*has_device, *has_library))]
    Wsl { has_device: bool, has_library: bool },
    /// NVML finds the Windows driver in WSL, but does not start.
    #[error("The NVIDIA driver does not start in WSL: {0}.")]
    WslRefused(String),
    #[error("The NVIDIA driver finds no GPU: it may be switched off or not powered.")]
    SwitchedOff,
    #[error("The NVIDIA driver did not start: {0}.")]
    Other(String),
}

impl DriverTrouble {
    pub fn reason(&self) -> String {
        self.to_string()
    }

    /// Returns the fixes, best first. Each is a command, or a piece of advice that may end with one.
    pub fn fix(&self, user_is_root: bool) -> Vec<String> {
        fix::fixes(self, user_is_root)
    }
}
