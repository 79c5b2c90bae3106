//! Runtime power state of NVIDIA GPUs, read from sysfs, which does not wake them.
//!
//! Linux suspends a laptop's GPU while nothing uses it, and opening it wakes it. So does reading
//! `/proc/driver/nvidia/gpus/*/information` (`rm_ref_dynamic_power` in `nv-procfs.c` of NVIDIA's open kernel modules) or
//! the PCI configuration space. The attributes read here come from the kernel's memory.

use std::fs;
use std::path::{Path, PathBuf};

use gputop_model::gpu::Board;
use gputop_model::text::visible;

const NVIDIA_VENDOR: &str = "0x10de";
/// Maximum number of PCI devices to look at.
const MAX_DEVICES: usize = 4_096;

/// A GPU on the PCI bus that the NVIDIA driver may use.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct PciGpu {
    /// PCI address as in [`Board::pci_bus`].
    pub bus: String,
    /// PCI device ID: `0x28e0`. Empty if it cannot be read.
    pub device: String,
    folder: PathBuf,
}

impl PciGpu {
    /// Lists the GPUs below `sys` (normally `/sys`) in the order of their addresses, which is also NVML's order.
    pub fn list(sys: &Path) -> Vec<Self> {
        let devices = fs::read_dir(sys.join("bus/pci/devices"));
        let devices = devices.into_iter().flatten().flatten().take(MAX_DEVICES);
        let mut gpus: Vec<Self> = devices.filter_map(|entry| Self::at(entry.path())).collect();
        gpus.sort_unstable();
        gpus
    }

    /// Returns `None` for other devices, for GPUs of other drivers (vfio, nouveau), and without a runtime power state.
    fn at(folder: PathBuf) -> Option<Self> {
        let is = |name, accepts: &dyn Fn(&str) -> bool| {
            attribute(&folder, name).is_none_or(|text| accepts(&text))
        };
        let driver = || fs::read_link(folder.join("driver")).ok();
        let is_nvidia = is("vendor", &|vendor| vendor == NVIDIA_VENDOR)
            && is("class", &|class| class.starts_with("0x03"))
            && driver().is_none_or(|driver| driver.ends_with("nvidia"));
        if !is_nvidia {
            return None;
        }
        attribute(&folder, "power/runtime_status")?;
        let bus = Board::bus_of(&folder.file_name()?.to_string_lossy());
        let device = attribute(&folder, "device").unwrap_or_default();
        Some(Self { bus: visible(bus.as_bytes(), 32), device, folder })
    }

    pub fn is_asleep(&self) -> bool {
        attribute(&self.folder, "power/runtime_status").as_deref() == Some("suspended")
    }

    /// Returns true if the kernel may suspend the GPU while nothing uses it.
    pub fn may_sleep(&self) -> bool {
        attribute(&self.folder, "power/control").as_deref() == Some("auto")
    }

    /// Returns the name to show until the driver reports one.
    pub fn name(&self) -> String {
        match self.device.strip_prefix("0x") {
            Some(device) => format!("NVIDIA GPU (PCI ID 10de:{device})"),
            None => "NVIDIA GPU".into(),
        }
    }
}

fn attribute(folder: &Path, name: &str) -> Option<String> {
    let text = fs::read(folder.join(name)).ok()?;
    Some(visible(text.trim_ascii(), 64))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device(sys: &Path, address: &str, attributes: &[(&str, &str)]) {
        for (name, text) in attributes {
            let path = sys.join("bus/pci/devices").join(address).join(name);
            fs::create_dir_all(path.parent().expect("a folder")).expect("folders");
            fs::write(path, format!("{text}\n")).expect("a file");
        }
    }

    #[test]
    fn lists_the_gpus_of_the_driver_in_nvml_order() {
        let sys = tempfile::tempdir().expect("tempdir");
        let gpu = |status| {
            [
                ("vendor", "0x10de"),
                ("class", "0x030200"),
                ("device", "0x28e0"),
                ("power/runtime_status", status),
                ("power/control", "auto"),
            ]
        };
        device(sys.path(), "0000:41:00.0", &gpu("active"));
        device(sys.path(), "0000:01:00.0", &gpu("suspended"));
        device(sys.path(), "0000:02:00.0", &gpu("suspended"));
        std::os::unix::fs::symlink(
            "../../../../bus/pci/drivers/vfio-pci",
            sys.path().join("bus/pci/devices/0000:02:00.0/driver"),
        )
        .expect("link");
        let sound = [("vendor", "0x10de"), ("class", "0x040300"), ("power/runtime_status", "x")];
        device(sys.path(), "0000:01:00.1", &sound);
        device(sys.path(), "0000:00:02.0", &[("vendor", "0x8086"), ("class", "0x030000")]);
        let gpus = PciGpu::list(sys.path());
        let shown: Vec<_> =
            gpus.iter().map(|gpu| (&*gpu.bus, gpu.is_asleep(), gpu.may_sleep())).collect();
        assert_eq!(shown, [("0000:01:00", true, true), ("0000:41:00", false, true)]);
        assert_eq!(gpus[0].name(), "NVIDIA GPU (PCI ID 10de:28e0)");
        assert_eq!(PciGpu::list(Path::new("/nowhere")), []);
    }
}
