//! Fixes for each driver problem, as commands or advice for the current user.
//!
//! A command is alone on its line or at the end of a phrase, without a trailing period, so that it can be copied. For
//! commands that require root, other users are told to ask the administrator.

use std::path::Path;

use crate::collect::driver::trouble::{DriverTrouble, OwnRuntime};

pub fn fixes(trouble: &DriverTrouble, user_is_root: bool) -> Vec<String> {
    let user = User { is_root: user_is_root };
    match trouble {
        DriverTrouble::NoHardware => vec![
            "monitor the machine that has the GPU: gputop HOST".into(),
            "if this machine should have a GPU, check the PCI bus: lspci -d 10de:".into(),
        ],
        DriverTrouble::NoLibrary => user.install(),
        DriverTrouble::LibraryNotOnPath { path } => on_path(path, &user),
        DriverTrouble::LibraryBroken(_) => {
            let check = "check which dependency is missing: ldd $(ldconfig -p | grep -m1 -o '/.*libnvidia-ml.so.1')";
            [vec![check.to_owned()], user.install()].concat()
        }
        DriverTrouble::ModuleNotLoaded { nouveau } => load_module(*nouveau, &user),
        DriverTrouble::ModuleNotBuilt { kernel } => vec![
            user.step(
                "build the module for this kernel",
                &format!("dkms autoinstall -k {kernel} && modprobe nvidia"),
            ),
            user.step("or boot the kernel that it was built for", "reboot"),
        ],
        DriverTrouble::NoDeviceFile { .. } => vec![
            user.step("create the device files", "nvidia-modprobe -c 0 -u"),
            user.step("or let nvidia-smi create them", "nvidia-smi"),
        ],
        DriverTrouble::Mismatch { .. } => load_new_module(&user),
        DriverTrouble::NoPermission { path, mode, group } => permission(path, *mode, group, &user),
        DriverTrouble::SwitchedOff => vec![
            "on a laptop, switch the GPU on: prime-select nvidia, or supergfxctl -m Hybrid".into(),
            "check whether the GPU is on the PCI bus: lspci -d 10de:".into(),
            user.step("look for the reason in the kernel log", "dmesg | grep -i nvrm"),
        ],
        DriverTrouble::Refused { .. } => {
            vec![user.step("check the driver's messages", "dmesg | grep -i nvrm")]
        }
        DriverTrouble::NoGpus { slurm } => no_gpus(*slurm, &user),
        DriverTrouble::NotPassedIn { runtime } => vec![
            container_fixes(*runtime).access.into(),
            "or run gputop on the host, which shows the processes of every container".into(),
        ],
        DriverTrouble::LibraryNotPassedIn { runtime } => {
            vec![container_fixes(*runtime).library.into()]
        }
        DriverTrouble::AccessLost { runtime, .. } => vec![container_fixes(*runtime).restart.into()],
        DriverTrouble::Wsl { has_device: true, has_library: true } => {
            vec!["LD_LIBRARY_PATH=/usr/lib/wsl/lib:$LD_LIBRARY_PATH gputop".into()]
        }
        DriverTrouble::Wsl { .. } => update_wsl("install the NVIDIA driver"),
        DriverTrouble::WslRefused(_) => update_wsl("update the NVIDIA driver"),
        DriverTrouble::Other(_) => vec![
            "check the message from NVIDIA's own tool: nvidia-smi".into(),
            user.step("look for the reason in the kernel log", "dmesg | grep -i nvrm"),
        ],
    }
}

pub fn mismatch(library: Option<&str>, kernel: Option<&str>) -> String {
    match (library, kernel) {
        (Some(library), Some(kernel)) if library != kernel => format!(
            "Driver and library do not match: the kernel module is {kernel}, the library is {library}. \
             The driver was upgraded, but the old module is still loaded."
        ),
        (_, Some(kernel)) => format!("Driver and library do not match: the kernel module is {kernel}, the library has a different version."),
        _ => "Driver and library do not match: the driver was upgraded, but the old module is still loaded.".into(),
    }
}

pub fn wsl(has_device: bool, has_library: bool) -> String {
    match (has_device, has_library) {
        (false, _) => "Windows does not pass a GPU to WSL: /dev/dxg is missing.",
        (true, false) => "The NVIDIA driver for WSL is not installed in Windows: /usr/lib/wsl/lib/libnvidia-ml.so.1 is missing.",
        (true, true) => "WSL cannot find the Windows NVIDIA driver.",
    }
    .into()
}

struct User {
    is_root: bool,
}

impl User {
    /// Returns the command itself for root. For other users, returns a request to the administrator.
    fn step(&self, purpose: &str, command: &str) -> String {
        if self.is_root {
            return command.to_owned();
        }
        match purpose.strip_prefix("or ") {
            Some(purpose) => format!("or ask the administrator to {purpose}: {command}"),
            None => format!("ask the administrator to {purpose}: {command}"),
        }
    }

    fn install(&self) -> Vec<String> {
        vec![
            self.step("install the driver (Ubuntu)", "ubuntu-drivers install"),
            self.step(
                "or install it (Fedora, RHEL)",
                "dnf install nvidia-driver nvidia-driver-cuda",
            ),
        ]
    }
}

fn on_path(path: &Path, user: &User) -> Vec<String> {
    let directory = path.parent().unwrap_or(path).display();
    vec![
        format!("LD_LIBRARY_PATH={directory}:$LD_LIBRARY_PATH gputop"),
        user.step(
            "add the directory to the library search path",
            &format!("echo {directory} > /etc/ld.so.conf.d/nvidia.conf && ldconfig"),
        ),
    ]
}

fn load_module(nouveau: bool, user: &User) -> Vec<String> {
    if !nouveau {
        return vec![user.step("load the kernel module", "modprobe nvidia")];
    }
    vec![
        user.step(
            "prevent nouveau from loading",
            "echo blacklist nouveau > /etc/modprobe.d/nouveau.conf",
        ),
        user.step("reboot afterwards", "reboot"),
    ]
}

fn load_new_module(user: &User) -> Vec<String> {
    vec![
        user.step("finish the upgrade with a reboot", "reboot"),
        user.step(
            "or load the new module, after all programs that use a GPU have exited",
            "rmmod nvidia_drm nvidia_modeset nvidia_uvm nvidia && modprobe nvidia",
        ),
        "in a container: restart the container, so that it gets the host's current library".into(),
    ]
}

fn no_gpus(is_slurm_job: bool, user: &User) -> Vec<String> {
    if is_slurm_job {
        return vec!["request a GPU from Slurm: srun --gres=gpu:1 --pty gputop".into()];
    }
    vec![
        "check whether the driver still lists the GPUs: cat /proc/driver/nvidia/gpus/*/information"
            .into(),
        user.step("look for the reason in the kernel log", "dmesg | grep -iE 'nvrm|xid'"),
    ]
}

fn permission(path: &Path, mode: u32, group: &str, user: &User) -> Vec<String> {
    let is_open_to_group = mode & 0o060 == 0o060;
    let mut fixes = Vec::new();
    if is_open_to_group && group != "root" {
        fixes.push(user.step(
            &format!("add you to the group {group}, then log in again"),
            &format!("usermod -aG {group} {}", if user.is_root { "USER" } else { "$USER" }),
        ));
    }
    let open_all = format!("chmod a+rw {}", path.display());
    fixes.push(
        user.step(
            if fixes.is_empty() { "open the device" } else { "or open the device" },
            &open_all,
        ),
    );
    fixes
}

struct ContainerFixes {
    /// Advice that gives the container access to the GPUs.
    access: &'static str,
    /// Advice that makes the driver library available in the container.
    library: &'static str,
    /// Advice that restores GPU access after `systemctl daemon-reload` on the host. The reload rewrites the container's
    /// device rules without the GPUs.
    restart: &'static str,
}

fn container_fixes(runtime: OwnRuntime) -> ContainerFixes {
    match runtime {
        OwnRuntime::Docker => ContainerFixes {
            access: "start the container with GPU access: docker run --gpus all",
            library: "start the container with the driver's utility libraries: docker run --gpus all -e NVIDIA_DRIVER_CAPABILITIES=compute,utility",
            restart: "restart the container from the host: docker restart CONTAINER",
        },
        OwnRuntime::Podman => ContainerFixes {
            access: "start the container with GPU access: podman run --device nvidia.com/gpu=all",
            library: "regenerate the CDI specification, then start the container: nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml",
            restart: "restart the container from the host: podman restart CONTAINER",
        },
        OwnRuntime::Kubernetes => ContainerFixes {
            access: "request a GPU in the pod manifest: resources: {limits: {nvidia.com/gpu: 1}}",
            library: "set this variable in the pod manifest: NVIDIA_DRIVER_CAPABILITIES=compute,utility",
            restart: "delete the pod, so that it is recreated: kubectl delete pod POD",
        },
        OwnRuntime::Apptainer => ContainerFixes {
            access: "start the container with GPU access: apptainer exec --nv",
            library: "start the container with the driver libraries: apptainer exec --nv",
            restart: "restart the container",
        },
        OwnRuntime::Other => ContainerFixes {
            access: "pass /dev/nvidiactl, /dev/nvidia-uvm, /dev/nvidia0 and the driver libraries into the container",
            library: "mount the host's libnvidia-ml.so.1 into the container",
            restart: "restart the container",
        },
    }
}

fn update_wsl(advice: &str) -> Vec<String> {
    vec![
        format!("{advice} in Windows, not in WSL: https://www.nvidia.com/drivers"),
        "then run in a Windows terminal: wsl --update && wsl --shutdown".into(),
    ]
}
