use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};

use super::*;

/// Root directory that a test fills with files.
struct Machine(tempfile::TempDir);

impl Machine {
    fn new() -> Self {
        Self(tempfile::tempdir().expect("tempdir"))
            .with("proc/sys/kernel/osrelease", "6.8.0-50-generic\n")
    }

    fn with(self, path: &str, text: &str) -> Self {
        let path = self.0.path().join(path);
        fs::create_dir_all(path.parent().expect("parent")).expect("folder");
        fs::write(path, text).expect("write");
        self
    }

    fn device(self, name: &str, mode: u32) -> Self {
        let machine = self.with(&format!("dev/{name}"), "");
        let path = machine.0.path().join("dev").join(name);
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("mode");
        machine
    }

    fn gpu(self) -> Self {
        self.with("sys/bus/pci/devices/0000:3b:00.0/vendor", "0x10de\n")
            .with("sys/bus/pci/devices/0000:3b:00.0/class", "0x030200\n")
    }

    fn library(self, version: &str) -> Self {
        let file = format!("libnvidia-ml.so.{version}");
        let machine = self.with(&format!("usr/lib64/{file}"), "");
        symlink(file, machine.0.path().join("usr/lib64/libnvidia-ml.so.1")).expect("link");
        machine
    }

    fn module(self, version: &str) -> Self {
        let line = format!(
            "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  {version}  Release Build\nGCC version: 12.3.0\n"
        );
        self.with("proc/driver/nvidia/version", &line)
    }

    fn diagnose(&self, failure: &NvmlFailure) -> DriverTrouble {
        diagnose_driver(self.0.path(), failure)
    }
}

fn not_found() -> NvmlFailure {
    NvmlFailure::Load(
        "libnvidia-ml.so.1: cannot open shared object file: No such file or directory".into(),
    )
}

const VERSION: &str = "580.159.03";

#[test]
fn distinguishes_missing_hardware_library_and_search_path() {
    assert_eq!(Machine::new().diagnose(&not_found()), DriverTrouble::NoHardware);
    assert_eq!(Machine::new().gpu().diagnose(&not_found()), DriverTrouble::NoLibrary);
    let elsewhere = Machine::new().gpu().with("usr/local/nvidia/lib64/libnvidia-ml.so.1", "");
    let path = PathBuf::from("/usr/local/nvidia/lib64/libnvidia-ml.so.1");
    assert_eq!(elsewhere.diagnose(&not_found()), DriverTrouble::LibraryNotOnPath { path });
}

#[test]
fn does_not_count_nvidia_network_card_as_gpu() {
    let machine = Machine::new()
        .with("sys/bus/pci/devices/0000:01:00.0/vendor", "0x10de\n")
        .with("sys/bus/pci/devices/0000:01:00.0/class", "0x020700\n");
    assert_eq!(machine.diagnose(&not_found()), DriverTrouble::NoHardware);
}

#[test]
fn broken_library_quotes_loader_message() {
    let broken = NvmlFailure::Load("/usr/lib64/libnvidia-ml.so.1: file too short".into());
    let trouble = Machine::new().gpu().library(VERSION).diagnose(&broken);
    assert_eq!(
        trouble.reason(),
        "The NVIDIA driver library cannot be loaded: /usr/lib64/libnvidia-ml.so.1: file too short."
    );
}

#[test]
fn explains_kernel_module_not_loaded() {
    let machine =
        Machine::new().gpu().library(VERSION).with("proc/modules", "ext4 1 0 - Live 0x0\n");
    let trouble = machine.diagnose(&NvmlFailure::DriverNotLoaded);
    assert_eq!(trouble, DriverTrouble::ModuleNotLoaded { nouveau: false });
    assert_eq!(trouble.fix(true), ["modprobe nvidia"]);
    assert_eq!(
        trouble.fix(false),
        ["ask the administrator to load the kernel module: modprobe nvidia"]
    );

    let nouveau = machine.with("proc/modules", "nouveau 1 0 - Live 0x0\n");
    let trouble = nouveau.diagnose(&NvmlFailure::DriverNotLoaded);
    assert_eq!(
        trouble.reason(),
        "The NVIDIA kernel module is not loaded: the nouveau driver is using the GPU."
    );
}

#[test]
fn explains_module_not_built_for_running_kernel() {
    let list = "lib/modules/6.8.0-50-generic/modules.dep";
    let machine = Machine::new().gpu().library(VERSION).with(list, "kernel/fs/ext4.ko:\n");
    let kernel = "6.8.0-50-generic".to_owned();
    assert_eq!(
        machine.diagnose(&NvmlFailure::DriverNotLoaded),
        DriverTrouble::ModuleNotBuilt { kernel }
    );
    let built = machine.with(list, "updates/dkms/nvidia.ko.zst: kernel/x.ko\n");
    assert_eq!(
        built.diagnose(&NvmlFailure::DriverNotLoaded),
        DriverTrouble::ModuleNotLoaded { nouveau: false }
    );
}

#[test]
fn reports_missing_hardware_before_missing_module() {
    let machine = Machine::new().library(VERSION);
    assert_eq!(machine.diagnose(&NvmlFailure::DriverNotLoaded), DriverTrouble::NoHardware);
}

#[test]
fn explains_missing_device_files() {
    let machine = Machine::new().gpu().library(VERSION).module(VERSION);
    let path = PathBuf::from("/dev/nvidiactl");
    assert_eq!(
        machine.diagnose(&NvmlFailure::DriverNotLoaded),
        DriverTrouble::NoDeviceFile { path }
    );
    let machine = machine.device("nvidiactl", 0o666);
    let path = PathBuf::from("/dev/nvidia0");
    assert_eq!(
        machine.diagnose(&NvmlFailure::DriverNotLoaded),
        DriverTrouble::NoDeviceFile { path }
    );
}

#[test]
fn explains_version_mismatch_after_upgrade() {
    let machine = Machine::new().gpu().library("580.159.03").module("580.95.05");
    let trouble = machine.diagnose(&NvmlFailure::VersionMismatch);
    assert_eq!(
        trouble.reason(),
        "Driver and library do not match: the kernel module is 580.95.05, the library is 580.159.03. \
         The driver was upgraded, but the old module is still loaded."
    );
    assert_eq!(trouble.fix(true)[0], "reboot");
}

#[test]
fn explains_device_files_restricted_to_group() {
    let gid = nix::unistd::getegid();
    let machine = Machine::new()
        .gpu()
        .library(VERSION)
        .module(VERSION)
        .with("etc/group", &format!("root:x:12345:\nvideo:x:{gid}:ana\n"))
        .device("nvidiactl", 0o666)
        .device("nvidia0", 0o660);
    let trouble = machine.diagnose(&NvmlFailure::NoPermission);
    assert_eq!(trouble.reason(), "No permission to open /dev/nvidia0 (mode 0660, group video).");
    assert_eq!(
        trouble.fix(false),
        [
            "ask the administrator to add you to the group video, then log in again: usermod -aG video $USER",
            "or ask the administrator to open the device: chmod a+rw /dev/nvidia0",
        ]
    );
    let open = machine.device("nvidia0", 0o666);
    let refused = DriverTrouble::Refused { has_devices: true };
    assert_eq!(open.diagnose(&NvmlFailure::NoPermission), refused);
    let none = Machine::new().gpu().library(VERSION).diagnose(&NvmlFailure::NoPermission);
    assert!(none.reason().contains("there are no NVIDIA device files"), "{none:?}");
}

#[test]
fn explains_driver_that_reports_no_gpu() {
    let machine = Machine::new().gpu().library(VERSION).module(VERSION).device("nvidiactl", 0o666);
    assert_eq!(machine.diagnose(&NvmlFailure::NoGpus), DriverTrouble::NoGpus { slurm: false });
    let job = machine.with("proc/self/cgroup", "0::/system.slice/slurmstepd.scope/job_7/step_0\n");
    let trouble = job.diagnose(&NvmlFailure::NoGpus);
    assert_eq!(trouble, DriverTrouble::NoGpus { slurm: true });
    assert_eq!(trouble.fix(false), ["request a GPU from Slurm: srun --gres=gpu:1 --pty gputop"]);
}

#[test]
fn explains_container_without_gpu_access() {
    let docker = || Machine::new().gpu().module(VERSION).with(".dockerenv", "");
    let runtime = OwnRuntime::Docker;
    let trouble = docker().diagnose(&not_found());
    assert_eq!(trouble, DriverTrouble::NotPassedIn { runtime });
    assert!(trouble.fix(false)[0].ends_with("docker run --gpus all"));
    assert_eq!(
        docker().library(VERSION).diagnose(&NvmlFailure::DriverNotLoaded),
        DriverTrouble::NotPassedIn { runtime }
    );

    let half = docker().device("nvidiactl", 0o666).device("nvidia0", 0o666);
    assert_eq!(half.diagnose(&not_found()), DriverTrouble::LibraryNotPassedIn { runtime });
    let text = "an internal driver error occurred".to_owned();
    let lost = half.library(VERSION).diagnose(&NvmlFailure::Other(text.clone()));
    assert_eq!(lost, DriverTrouble::AccessLost { runtime, text });
    // Nothing but the library shows that the container had access.
    let bare = Machine::new().with(".dockerenv", "");
    let lost = bare.diagnose(&NvmlFailure::Other("Unknown Error".into()));
    assert!(lost.fix(false)[0].starts_with("restart the container"), "{lost:?}");
    assert!(lost.reason().contains("daemon-reload"), "{lost:?}");
    assert_eq!(
        Machine::new().with(".dockerenv", "").diagnose(&not_found()),
        DriverTrouble::NoHardware
    );
}

#[test]
fn detects_each_container_runtime() {
    let of =
        |path: &str, text: &str| match Machine::new().gpu().with(path, text).diagnose(&not_found())
        {
            DriverTrouble::NotPassedIn { runtime } => Some(runtime),
            _ => None,
        };
    assert_eq!(of("run/.containerenv", ""), Some(OwnRuntime::Podman));
    assert_eq!(of("run/secrets/kubernetes.io/x", ""), Some(OwnRuntime::Kubernetes));
    assert_eq!(of(".singularity.d/env", ""), Some(OwnRuntime::Apptainer));
    assert_eq!(
        of("proc/1/cgroup", "0::/kubepods/besteffort/pod1/x\n"),
        Some(OwnRuntime::Kubernetes)
    );
    assert_eq!(of("proc/1/cgroup", "0::/lxc.payload.web\n"), Some(OwnRuntime::Other));
    assert_eq!(of("proc/1/cgroup", "0::/init.scope\n"), None);
}

#[test]
fn explains_missing_driver_in_wsl() {
    let wsl =
        || Machine::new().with("proc/sys/kernel/osrelease", "5.15.153.1-microsoft-standard-WSL2\n");
    let reason = |machine: Machine| machine.diagnose(&not_found()).reason();
    assert_eq!(reason(wsl()), "Windows does not pass a GPU to WSL: /dev/dxg is missing.");
    assert!(
        reason(wsl().device("dxg", 0o666)).contains("driver for WSL is not installed in Windows")
    );
    let found = wsl().device("dxg", 0o666).with("usr/lib/wsl/lib/libnvidia-ml.so.1", "");
    let trouble = found.diagnose(&not_found());
    assert_eq!(trouble.fix(false), ["LD_LIBRARY_PATH=/usr/lib/wsl/lib:$LD_LIBRARY_PATH gputop"]);
    let blocked = NvmlFailure::Other("GPU access blocked by the operating system".into());
    let trouble = found.diagnose(&blocked);
    assert_eq!(
        trouble.reason(),
        "The NVIDIA driver does not start in WSL: GPU access blocked by the operating system."
    );
    let fix = trouble.fix(false).join("\n");
    assert!(fix.contains("update the NVIDIA driver in Windows") && fix.contains("wsl --update"));
}

#[test]
fn maps_nvml_errors_to_failures() {
    assert_eq!(NvmlFailure::from(&NvmlError::DriverNotLoaded), NvmlFailure::DriverNotLoaded);
    assert_eq!(NvmlFailure::from(&NvmlError::LibRmVersionMismatch), NvmlFailure::VersionMismatch);
    assert!(matches!(NvmlFailure::from(&NvmlError::Unknown), NvmlFailure::Other(_)));
    let absent =
        nvml_wrapper::Nvml::builder().lib_path("/nowhere/libnvidia-ml.so.1".as_ref()).init();
    let failure = absent.as_ref().map_err(NvmlFailure::from).expect_err("no such file");
    assert_eq!(Machine::new().gpu().diagnose(&failure), DriverTrouble::NoLibrary);
}

#[test]
fn reasons_end_with_period_and_commands_do_not() {
    let path = PathBuf::from("/dev/nvidia0");
    let text = "text".to_owned();
    let runtime = OwnRuntime::Other;
    let all = [
        DriverTrouble::NoHardware,
        DriverTrouble::NoLibrary,
        DriverTrouble::LibraryNotOnPath { path: path.clone() },
        DriverTrouble::LibraryBroken(text.clone()),
        DriverTrouble::ModuleNotLoaded { nouveau: true },
        DriverTrouble::ModuleNotBuilt { kernel: text.clone() },
        DriverTrouble::NoDeviceFile { path: path.clone() },
        DriverTrouble::Mismatch { library: None, kernel: None },
        DriverTrouble::NoPermission { path, mode: 0o600, group: "root".into() },
        DriverTrouble::Refused { has_devices: false },
        DriverTrouble::SwitchedOff,
        DriverTrouble::NoGpus { slurm: false },
        DriverTrouble::NotPassedIn { runtime },
        DriverTrouble::LibraryNotPassedIn { runtime },
        DriverTrouble::AccessLost { runtime, text: text.clone() },
        DriverTrouble::Wsl { has_device: true, has_library: true },
        DriverTrouble::WslRefused(text.clone()),
        DriverTrouble::Other(text),
    ];
    for trouble in all {
        assert!(trouble.reason().ends_with('.'), "{trouble:?}");
        for fix in [trouble.fix(true), trouble.fix(false)].concat() {
            assert!(!fix.ends_with('.'), "{fix}");
        }
        assert!(!trouble.fix(false).is_empty());
    }
}
