//! A fake `nvidia-smi` for a remote host's PATH, with the output format of a real driver.
#![allow(dead_code)]

use std::fs;
use std::path::PathBuf;

use super::executable;

/// Properties that driver 580 lists, limited to those that matter here, each with a line of prose.
const NEW_NAMES: &str = r#"List of valid properties to query for the switch "--query-gpu":

"driver_version"
The version of the installed NVIDIA display driver.
"name" or "gpu_name"
"serial" or "gpu_serial"
"uuid" or "gpu_uuid"
"pci.bus_id" or "gpu_bus_id"
"pcie.link.gen.current"
"pcie.link.gen.max"
"pcie.link.width.current"
"pcie.link.width.max"
"index"
"persistence_mode"
"vbios_version"
"fan.speed"
"pstate"
"clocks_event_reasons.active" or "clocks_throttle_reasons.active"
"memory.total"
"memory.reserved"
"memory.used"
"memory.free"
"compute_mode"
"0: Default" means multiple contexts are allowed per device.
"compute_cap"
"utilization.gpu"
"utilization.memory"
"utilization.encoder"
"utilization.decoder"
"ecc.mode.current"
"ecc.errors.corrected.volatile.total"
"ecc.errors.uncorrected.volatile.total"
"remapped_rows.correctable" or "remapped_rows.sbe"
"remapped_rows.uncorrectable" or "remapped_rows.dbe"
"remapped_rows.pending"
"remapped_rows.failure"
"gpu_recovery_action"
"temperature.gpu"
"temperature.memory"
"power.draw"
"enforced.power.limit" or "gpu.power.current_limit"
"power.default_limit" or "gpu.power.default_limit"
"power.max_limit" or "gpu.power.max_limit"
"clocks.current.sm" or "clocks.sm"
"clocks.current.memory" or "clocks.mem"
"clocks.max.sm" or "clocks.max.sm"
"clocks.max.memory" or "clocks.max.mem"
"mig.mode.current"
"#;

/// Values of a busy H200, in the units of `--format=csv,noheader,nounits`, one line per field. A field without a value
/// reads `[N/A]`.
const GPU: &str = "name=NVIDIA H200
driver_version=580.159.04
pci.bus_id=00000000:3B:00.0
compute_mode=Default
compute_cap=9.0
persistence_mode=Enabled
memory.total=143771
memory.reserved=616
memory.used=1551
memory.free=141606
utilization.gpu=31
utilization.memory=[Not Supported]
power.draw=124.71
enforced.power.limit=700.00
temperature.gpu=44
clocks.sm=1980
clocks.mem=3201
pstate=P0
clocks_event_reasons.active=0x0000000000000004
clocks_throttle_reasons.active=0x0000000000000040
ecc.mode.current=Enabled
ecc.errors.uncorrected.volatile.total=0
mig.mode.current=Disabled
";

const VERSION: &str = "NVIDIA-SMI version  : 580.159.04
NVML version        : 580.159
DRIVER version      : 580.159.04
CUDA Version        : 13.0
";

/// Header of the process list.
const USAGE: &str = "\
# gpu         pid   type     sm    mem    enc    dec    jpg    ofa     fb   ccpm    command
# Idx           #    C/G      %      %      %      %      %      %     MB     MB    name
";

const TABLE: &str = "\
+-----------------------------------------------------------------------------------------+
| NVIDIA-SMI 580.159.04             Driver Version: 580.159.04     CUDA Version: 13.0     |
+-----------------------------------------+------------------------+----------------------+
| GPU  Name                 Persistence-M | Bus-Id          Disp.A | Volatile Uncorr. ECC |
|   0  NVIDIA H200                    On  |   00000000:3B:00.0 Off |                   On |
| N/A   44C    P0            125W /  700W |    1551MiB / 143771MiB |     31%      Default |
+-----------------------------------------+------------------------+----------------------+
";

/// The files of a fake `nvidia-smi`, in one folder.
pub struct NvidiaSmi {
    folder: PathBuf,
}

impl NvidiaSmi {
    /// Installs an `nvidia-smi` with one GPU and no processes.
    pub fn install(folder: PathBuf) -> Self {
        executable::write(folder.join("nvidia-smi"), include_str!("nvidia_smi.sh"));
        let smi = Self { folder };
        smi.write("help", NEW_NAMES);
        smi.write("apps", "");
        smi.write("usage", &format!("{USAGE}    0          -     -      -      -      -      -      -      -      -      -    -\n"));
        smi.write("version", VERSION);
        smi.write("table", TABLE);
        smi.write("devices", "");
        smi.gpu(0, "");
        smi
    }

    /// Sets a GPU's values as `name=value` lines. If a name occurs twice, the last line counts.
    pub fn gpu(&self, index: u32, more: &str) {
        let text = format!("index={index}\nuuid={}\n{GPU}{more}\n", uuid(index));
        self.write(&format!("gpu{index}"), &text);
    }

    /// Imitates a driver before 535: throttle reasons had another name, and only the headline contained the version.
    pub fn set_old_driver(&self) {
        fs::remove_file(self.at("version")).unwrap();
        let names = NEW_NAMES.replace("\"clocks_event_reasons.active\" or ", "");
        self.write("help", &names);
    }

    /// Adds a process, with its memory and name as printed.
    pub fn app(&self, gpu: u32, pid: u32, memory: &str, name: &str) {
        let mut apps = fs::read_to_string(self.at("apps")).unwrap();
        apps += &format!("{}, {pid}, {memory}, {name}\n", uuid(gpu));
        self.write("apps", &apps);
    }

    /// Sets the process list: lines from the GPU's number to the process's name.
    pub fn usage(&self, lines: &[String]) {
        let lines: String = lines.iter().map(|line| format!("    {line}\n")).collect();
        self.write("usage", &(USAGE.to_owned() + &lines));
    }

    /// Turns the first GPU into one MIG instance of 71 GB with this much memory in use, in MiB.
    pub fn set_mig(&self, used: u32) {
        self.gpu(0, "mig.mode.current=Enabled\nutilization.gpu=[N/A]");
        let devices = format!(
            "GPU 0: NVIDIA H200 (UUID: {})\n  MIG 3g.71gb     Device  0: (UUID: MIG-dc34c2fd-4bd7-52ad)\n",
            uuid(0)
        );
        self.write("devices", &devices);
        let instance = format!(
            "| MIG devices:                                                                            |\n\
             |  0    2   0   0  |            {used}MiB / 72448MiB    | 56      0 |  4   0    2    0    0 |\n\
             |                  |               0MiB / 12211MiB    |           |                       |\n"
        );
        self.write("table", &(TABLE.to_owned() + &instance));
    }

    /// Makes `nvidia-smi` hang, or answer again.
    pub fn hang(&self, hangs: bool) {
        if hangs {
            self.write("hangs", "");
        } else {
            fs::remove_file(self.at("hangs")).unwrap();
        }
    }

    pub fn fail(&self, words: &str) {
        self.write("failed", words);
    }

    fn at(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// Replaces a file atomically, so that nobody reads half of it.
    fn write(&self, name: &str, text: &str) {
        fs::write(self.at(".new"), text).unwrap();
        fs::rename(self.at(".new"), self.at(name)).unwrap();
    }
}

pub fn uuid(gpu: u32) -> String {
    format!("GPU-5a0e6b1c-0000-4000-8000-{gpu:012}")
}
