//! Facts about the NVIDIA driver, read from the system's files.
//!
//! This module only reads system files. `mod.rs` derives the diagnosis from these facts.

use std::fs;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::collect::driver::trouble::OwnRuntime;
use crate::collect::host::pid_namespace;
use gputop_model::PidNamespace;
use gputop_model::host::is_wsl_kernel;

/// Directories in which distributions, NVIDIA's installer and container toolkits install the driver library.
#[rustfmt::skip]
const LIBRARY_DIRECTORIES: &[&str] = &[
    "usr/lib/x86_64-linux-gnu", "usr/lib/aarch64-linux-gnu", "usr/lib64", "usr/lib", "lib/x86_64-linux-gnu",
    "lib64", "usr/lib/wsl/lib", "usr/lib/nvidia", "usr/lib/x86_64-linux-gnu/nvidia/current",
    "usr/lib64-nvidia", "usr/local/nvidia/lib64", "usr/local/nvidia/lib", "home/kubernetes/bin/nvidia/lib64",
    "run/opengl-driver/lib",
];
const LIBRARY: &str = "libnvidia-ml.so.1";
const NVIDIA_VENDOR: &str = "0x10de";
/// Maximum size of a file to read. A distribution kernel's modules.dep is about 0.5 MB.
const MAX_FILE_BYTES: u64 = 8 << 20;

#[derive(Debug, Clone, Default, PartialEq)]
pub struct SystemFacts {
    pub library: Option<PathBuf>,
    pub library_version: Option<String>,
    /// Version of the loaded kernel module.
    pub module_version: Option<String>,
    /// Version of the running kernel. Set only if depmod's list of the kernel's modules does not contain nvidia.
    pub kernel_without_module: Option<String>,
    pub has_nouveau: bool,
    pub has_hardware: bool,
    /// True if the driver's control device file `/dev/nvidiactl` exists.
    pub has_control_file: bool,
    /// True if `/dev/nvidia0` or another GPU's device file exists.
    pub has_gpu_file: bool,
    /// First device file that is not accessible to all users.
    pub closed_device: Option<ClosedDevice>,
    pub container: Option<OwnRuntime>,
    pub is_wsl: bool,
    /// True if `/dev/dxg` exists, which represents the GPU of a Windows host.
    pub has_wsl_device: bool,
    pub is_slurm_job: bool,
}

#[derive(Debug, Clone, PartialEq)]
pub struct ClosedDevice {
    pub path: PathBuf,
    pub mode: u32,
    /// Name of the file's group, or its number if it has no name.
    pub group: String,
}

impl SystemFacts {
    pub fn read(root: &Path) -> Self {
        let library = library(root);
        let devices = devices(root);
        let kernel = text(root, "proc/sys/kernel/osrelease").trim().to_owned();
        let modules = text(root, "proc/modules");
        Self {
            library_version: library.as_deref().and_then(|path| library_version(root, path)),
            library,
            module_version: module_version(root),
            kernel_without_module: kernel_without_module(root, &kernel),
            has_nouveau: modules.lines().any(|line| line.starts_with("nouveau ")),
            has_hardware: has_hardware(root),
            has_control_file: root.join("dev/nvidiactl").exists(),
            has_gpu_file: devices.iter().any(|name| is_gpu(name)),
            closed_device: devices.iter().find_map(|name| closed_device(root, name)),
            container: container(root),
            is_wsl: is_wsl_kernel(&kernel),
            has_wsl_device: root.join("dev/dxg").exists(),
            is_slurm_job: text(root, "proc/self/cgroup").contains("/job_"),
        }
    }

    pub fn has_devices(&self) -> bool {
        self.has_control_file || self.has_gpu_file
    }
}

/// Reads a file as text. Missing and unreadable files are treated as empty.
fn text(root: &Path, path: &str) -> String {
    let mut bytes = Vec::new();
    if let Ok(file) = fs::File::open(root.join(path)) {
        let _ = file.take(MAX_FILE_BYTES).read_to_end(&mut bytes);
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

fn library(root: &Path) -> Option<PathBuf> {
    LIBRARY_DIRECTORIES
        .iter()
        .map(|directory| Path::new("/").join(directory).join(LIBRARY))
        .find(|path| fs::symlink_metadata(below(root, path)).is_ok())
}

fn below(root: &Path, path: &Path) -> PathBuf {
    root.join(path.strip_prefix("/").unwrap_or(path))
}

/// Returns the driver library's version. `libnvidia-ml.so.1` is a link to `libnvidia-ml.so.580.159.03`. In a container,
/// it may be a regular file next to the versioned one.
fn library_version(root: &Path, library: &Path) -> Option<String> {
    let link = below(root, library);
    let target = fs::read_link(&link).ok();
    let linked = target
        .as_deref()
        .and_then(Path::file_name)
        .and_then(|name| name.to_str())
        .and_then(version_in_name);
    linked.or_else(|| {
        fs::read_dir(link.parent()?)
            .ok()?
            .flatten()
            .find_map(|entry| version_in_name(entry.file_name().to_str()?))
    })
}

fn version_in_name(name: &str) -> Option<String> {
    let version = name.strip_prefix("libnvidia-ml.so.")?;
    is_version(version).then(|| version.to_owned())
}

/// Returns the kernel module's version from `NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.159.03  Mon …`. The
/// open kernel module has different text before the version.
fn module_version(root: &Path) -> Option<String> {
    let text = text(root, "proc/driver/nvidia/version");
    let line = text.lines().find(|line| line.starts_with("NVRM version:"))?;
    line.split_whitespace().find(|word| is_version(word)).map(str::to_owned)
}

fn is_version(word: &str) -> bool {
    word.contains('.')
        && word.split('.').all(|part| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit()))
}

/// Returns the running kernel's version if depmod's list of the kernel's modules does not contain nvidia. Returns
/// `None` if there is no list, as in a container, or on a system that loads modules without depmod.
fn kernel_without_module(root: &Path, kernel: &str) -> Option<String> {
    let list = text(root, &format!("lib/modules/{kernel}/modules.dep"));
    let has_module = list
        .lines()
        .filter_map(|line| line.split(':').next()?.rsplit('/').next())
        .any(|file| file.starts_with("nvidia.ko") || file.starts_with("nvidia-current.ko"));
    (!list.is_empty() && !has_module).then(|| kernel.to_owned())
}

fn has_hardware(root: &Path) -> bool {
    let Ok(devices) = fs::read_dir(root.join("sys/bus/pci/devices")) else { return false };
    devices.flatten().any(|device| {
        let has_value = |file: &str, prefix: &str| {
            fs::read_to_string(device.path().join(file)).is_ok_and(|text| text.starts_with(prefix))
        };
        // Accept only display controllers, because NVIDIA also makes network cards and switches.
        has_value("vendor", NVIDIA_VENDOR) && has_value("class", "0x03")
    })
}

/// Lists the device files that NVML opens, in a fixed order.
fn devices(root: &Path) -> Vec<String> {
    let Ok(entries) = fs::read_dir(root.join("dev")) else { return Vec::new() };
    let mut names: Vec<String> = entries
        .flatten()
        .filter_map(|entry| entry.file_name().into_string().ok())
        .filter(|name| name == "nvidiactl" || is_gpu(name))
        .collect();
    names.sort_unstable_by_key(|name| (name != "nvidiactl", name.len(), name.clone()));
    names
}

fn is_gpu(name: &str) -> bool {
    name.strip_prefix("nvidia")
        .is_some_and(|n| !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit()))
}

fn closed_device(root: &Path, name: &str) -> Option<ClosedDevice> {
    let metadata = fs::metadata(root.join("dev").join(name)).ok()?;
    let mode = metadata.mode() & 0o7777;
    (mode & 0o006 != 0o006).then(|| ClosedDevice {
        path: Path::new("/dev").join(name),
        mode,
        group: group_name(root, metadata.gid()),
    })
}

fn group_name(root: &Path, gid: u32) -> String {
    let gid = gid.to_string();
    let groups = text(root, "etc/group");
    groups
        .lines()
        .map(|line| line.split(':'))
        .find_map(|mut fields| {
            let name = fields.next()?;
            (fields.nth(1)? == gid).then(|| name.to_owned())
        })
        .unwrap_or(gid)
}

fn container(root: &Path) -> Option<OwnRuntime> {
    let exists = |path: &str| root.join(path).exists();
    if exists("var/run/secrets/kubernetes.io") || exists("run/secrets/kubernetes.io") {
        return Some(OwnRuntime::Kubernetes);
    }
    if exists("run/.containerenv") {
        return Some(OwnRuntime::Podman);
    }
    if exists("singularity") || exists(".singularity.d") {
        return Some(OwnRuntime::Apptainer);
    }
    if exists(".dockerenv") {
        return Some(OwnRuntime::Docker);
    }
    let init = text(root, "proc/1/cgroup");
    let holds = |names: &[&str]| names.iter().any(|name| init.contains(name));
    if holds(&["kubepods"]) {
        Some(OwnRuntime::Kubernetes)
    } else if holds(&["/docker"]) {
        Some(OwnRuntime::Docker)
    } else if holds(&["libpod"]) {
        Some(OwnRuntime::Podman)
    } else if holds(&["/lxc", "containerd", "machine.slice"])
        || pid_namespace(&root.join("proc")) == PidNamespace::Container
    {
        Some(OwnRuntime::Other)
    } else {
        None
    }
}
