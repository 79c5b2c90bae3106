//! What to do about each trouble, in commands that this user may run.
//!
//! A command stands alone on its line or at the end of a clause, without a period behind it, so that it can be
//! copied. An ordinary user is not told to load a module but whom to ask, and for what.

use std::path::Path;

use super::{DriverTrouble, Runtime};

pub fn of(trouble: &DriverTrouble, user_is_root: bool) -> Vec<String> {
    let who = Who {
        is_root: user_is_root,
    };
    match trouble {
        DriverTrouble::NoHardware => vec![
            "run gputop for the machine that has the GPU: gputop HOST".into(),
            "if this machine should have one, look for it: lspci -d 10de:".into(),
        ],
        DriverTrouble::NoLibrary => who.install(),
        DriverTrouble::LibraryNotOnPath { path } => on_path(path, &who),
        DriverTrouble::LibraryBroken(_) => {
            let mut fixes = vec![
                "see what the loader says: ldd $(ldconfig -p | grep -m1 -o '/.*libnvidia-ml.so.1')"
                    .into(),
            ];
            fixes.extend(who.install());
            fixes
        }
        DriverTrouble::ModuleNotLoaded { nouveau } => load_module(*nouveau, &who),
        DriverTrouble::ModuleNotBuilt { kernel } => vec![
            who.does(
                "build it for this kernel",
                &format!("dkms autoinstall -k {kernel} && modprobe nvidia"),
            ),
            who.does("or start the kernel that it was built for", "reboot"),
        ],
        DriverTrouble::NoDeviceFile { .. } => vec![
            who.does("create the device files", "nvidia-modprobe -c 0 -u"),
            who.does("or let nvidia-smi create them", "nvidia-smi"),
        ],
        DriverTrouble::Mismatch { .. } => vec![
            who.does("finish the upgrade by a restart", "reboot"),
            who.does(
                "or, with no program on any GPU, load the new module",
                "rmmod nvidia_drm nvidia_modeset nvidia_uvm nvidia && modprobe nvidia",
            ),
            "in a container: restart the container, so that it gets the host's present library"
                .into(),
        ],
        DriverTrouble::NoPermission { path, mode, group } => permission(path, *mode, group, &who),
        DriverTrouble::Refused => vec![who.does("let the driver say why", "dmesg | grep -i nvrm")],
        DriverTrouble::NoGpus { slurm: true } => {
            vec!["ask Slurm for one: srun --gres=gpu:1 --pty gputop".into()]
        }
        DriverTrouble::NoGpus { slurm: false } => vec![
            "see whether the driver has dropped them: cat /proc/driver/nvidia/gpus/*/information"
                .into(),
            who.does(
                "look for the reason in the kernel's log",
                "dmesg | grep -iE 'nvrm|xid'",
            ),
        ],
        DriverTrouble::NotPassedIn { runtime } => pass_in(*runtime),
        DriverTrouble::LibraryNotPassedIn { runtime } => pass_in_library(*runtime),
        DriverTrouble::AccessLost { runtime, .. } => restart(*runtime),
        DriverTrouble::Wsl {
            has_device,
            has_library,
        } => in_wsl(*has_device, *has_library),
        DriverTrouble::Other(_) => vec![
            "see what NVIDIA's own tool says: nvidia-smi".into(),
            who.does(
                "look for the reason in the kernel's log",
                "dmesg | grep -i nvrm",
            ),
        ],
    }
}

pub fn mismatch(library: Option<&str>, kernel: Option<&str>) -> String {
    match (library, kernel) {
        (Some(library), Some(kernel)) if library != kernel => format!(
            "Driver and library do not match: the kernel module is {kernel}, the library {library}; \
             the driver was upgraded and the old module still runs."
        ),
        (_, Some(kernel)) => format!("Driver and library do not match: the kernel module is {kernel}, the library another version."),
        _ => "Driver and library do not match: the driver was upgraded and the old module still runs.".into(),
    }
}

pub fn wsl(has_device: bool, has_library: bool) -> String {
    match (has_device, has_library) {
        (false, _) => "Windows gives this WSL no GPU: /dev/dxg is missing.",
        (true, false) => "Windows has no NVIDIA driver for this WSL: /usr/lib/wsl/lib/libnvidia-ml.so.1 is missing.",
        (true, true) => "The NVIDIA driver of Windows is not found by this WSL.",
    }
    .into()
}

struct Who {
    is_root: bool,
}

impl Who {
    /// Root gets the command alone, everybody else what to ask for.
    fn does(&self, aim: &str, command: &str) -> String {
        if self.is_root {
            return command.to_owned();
        }
        match aim.strip_prefix("or ") {
            Some(aim) => format!("or ask the administrator to {aim}: {command}"),
            None => format!("ask the administrator to {aim}: {command}"),
        }
    }

    fn install(&self) -> Vec<String> {
        vec![
            self.does("install the driver (Ubuntu)", "ubuntu-drivers install"),
            self.does(
                "or install it (Fedora, RHEL)",
                "dnf install nvidia-driver nvidia-driver-cuda",
            ),
        ]
    }
}

fn on_path(path: &Path, who: &Who) -> Vec<String> {
    let folder = path.parent().unwrap_or(path).display();
    vec![
        format!("LD_LIBRARY_PATH={folder}:$LD_LIBRARY_PATH gputop"),
        who.does(
            "make the loader look there",
            &format!("echo {folder} > /etc/ld.so.conf.d/nvidia.conf && ldconfig"),
        ),
    ]
}

fn load_module(nouveau: bool, who: &Who) -> Vec<String> {
    if !nouveau {
        return vec![who.does("load the kernel module", "modprobe nvidia")];
    }
    vec![
        who.does(
            "keep nouveau from being loaded",
            "echo blacklist nouveau > /etc/modprobe.d/nouveau.conf",
        ),
        who.does("and then restart the machine", "reboot"),
    ]
}

fn permission(path: &Path, mode: u32, group: &str, who: &Who) -> Vec<String> {
    let is_open_to_group = mode & 0o060 == 0o060;
    let mut fixes = Vec::new();
    if is_open_to_group && group != "root" {
        fixes.push(who.does(
            &format!("add you to the group {group}, then log in again"),
            &format!(
                "usermod -aG {group} {}",
                if who.is_root { "USER" } else { "$USER" }
            ),
        ));
    }
    let open_all = format!("chmod a+rw {}", path.display());
    fixes.push(who.does(
        if fixes.is_empty() {
            "open the device"
        } else {
            "or open the device"
        },
        &open_all,
    ));
    fixes
}

fn pass_in(runtime: Runtime) -> Vec<String> {
    let fix = match runtime {
        Runtime::Docker => "start the container with its GPUs: docker run --gpus all",
        Runtime::Podman => {
            "start the container with its GPUs: podman run --device nvidia.com/gpu=all"
        }
        Runtime::Kubernetes => {
            "give the container a limit in the pod's manifest: resources: {limits: {nvidia.com/gpu: 1}}"
        }
        Runtime::Apptainer => "start the container with its GPUs: apptainer exec --nv",
        Runtime::Other => {
            "pass /dev/nvidiactl, /dev/nvidia-uvm and /dev/nvidia0 into the container, with the driver's libraries"
        }
    };
    vec![
        fix.into(),
        "or run gputop on the host, which sees every container's processes".into(),
    ]
}

fn pass_in_library(runtime: Runtime) -> Vec<String> {
    let fix = match runtime {
        Runtime::Docker => {
            "start the container with the driver's tools: docker run --gpus all -e NVIDIA_DRIVER_CAPABILITIES=compute,utility"
        }
        Runtime::Podman => {
            "make the device description again, then start the container: nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml"
        }
        Runtime::Kubernetes => {
            "set this variable in the pod's manifest: NVIDIA_DRIVER_CAPABILITIES=compute,utility"
        }
        Runtime::Apptainer => {
            "start the container with the driver's libraries: apptainer exec --nv"
        }
        Runtime::Other => "mount the host's libnvidia-ml.so.1 into the container",
    };
    vec![fix.into()]
}

/// A `systemctl daemon-reload` on the host rewrites the container's device rules and forgets the GPUs.
fn restart(runtime: Runtime) -> Vec<String> {
    let fix = match runtime {
        Runtime::Docker => "restart the container from the host: docker restart CONTAINER",
        Runtime::Podman => "restart the container from the host: podman restart CONTAINER",
        Runtime::Kubernetes => "delete the pod, so that it is started anew: kubectl delete pod POD",
        Runtime::Apptainer | Runtime::Other => "restart the container",
    };
    vec![fix.into()]
}

fn in_wsl(has_device: bool, has_library: bool) -> Vec<String> {
    if has_device && has_library {
        return vec!["LD_LIBRARY_PATH=/usr/lib/wsl/lib:$LD_LIBRARY_PATH gputop".into()];
    }
    vec![
        "install the NVIDIA driver in Windows, not in here: https://www.nvidia.com/drivers".into(),
        "then, in a Windows terminal: wsl --update && wsl --shutdown".into(),
    ]
}
