//! MIG instances. Their identities come from `nvidia-smi -L`, and their numbers and memory from the table that
//! `nvidia-smi` prints without options.
//!
//! ```text
//! GPU 0: NVIDIA A100-SXM4-40GB (UUID: GPU-5d5ba0d6-…)
//!   MIG 3g.20gb     Device  0: (UUID: MIG-c6d4f1ef-…)
//!
//! | GPU  GI  CI  MIG |                     Memory-Usage |        Vol|        Shared         |
//! |      ID  ID  Dev |                       BAR1-Usage | SM     Unc| CE ENC  DEC  OFA  JPG |
//! |  0    2   0   0  |             142MiB / 20096MiB    | 56      0 |  4   0    2    0    0 |
//! ```
//!
//! The free memory of an instance is not reported. It cannot be calculated, because the memory that the driver
//! reserves is unknown.

use std::collections::BTreeMap;

use gputop_model::text::visible;
use gputop_model::{Bytes, GpuUuid, Memory, MigInstance, Missing, Reading, Reason};

use super::cell::SmiCell;

const MAX_INSTANCES_PER_GPU: usize = 16;
const MAX_TEXT: usize = 96;

/// MIG instances, keyed by the NVML index of their GPU.
pub(super) type Instances = BTreeMap<u32, Vec<MigInstance>>;

/// Merges the device list of `nvidia-smi -L` with the rows of the MIG table.
pub(super) fn instances(devices: &[Vec<u8>], table: &[Vec<u8>]) -> Instances {
    let (mut all, mut gpu) = (Instances::new(), None);
    let rows: BTreeMap<(u32, u32), MigRow> = texts(table).filter_map(row).collect();
    for line in texts(devices) {
        if let Some(parent) = line.strip_prefix("GPU ") {
            gpu = parent.split_once(':').and_then(|(index, _)| index.parse().ok());
            continue;
        }
        let Some((parent, mut instance)) = gpu.zip(device(line)) else { continue };
        let list: &mut Vec<MigInstance> = all.entry(parent).or_default();
        if list.len() < MAX_INSTANCES_PER_GPU {
            let row = rows.get(&(parent, instance.index));
            complete(&mut instance, row);
            list.push(instance);
        }
    }
    all
}

fn texts(lines: &[Vec<u8>]) -> impl Iterator<Item = &str> {
    lines.iter().filter_map(|line| std::str::from_utf8(line).ok())
}

/// Parses `  MIG 3g.20gb     Device  0: (UUID: MIG-c6d4f1ef-…)`.
fn device(line: &str) -> Option<MigInstance> {
    let (profile, rest) = line.trim_start().strip_prefix("MIG ")?.split_once(" Device ")?;
    let (index, rest) = rest.split_once(':')?;
    let uuid = rest.trim().strip_prefix("(UUID: ")?.strip_suffix(')')?;
    Some(MigInstance {
        index: index.trim().parse().ok()?,
        uuid: GpuUuid(visible(uuid.as_bytes(), MAX_TEXT).into()),
        profile: visible(profile.trim().as_bytes(), MAX_TEXT).into(),
        ..MigInstance::default()
    })
}

/// A row of the MIG table that `nvidia-smi` prints.
struct MigRow {
    gpu_instance: u32,
    compute_instance: u32,
    used: Reading<Bytes>,
    total: Reading<Bytes>,
}

/// Parses a row of the MIG table. Returns the row with its GPU index and its device number on that GPU.
fn row(line: &str) -> Option<((u32, u32), MigRow)> {
    let mut cells = line.split('|').skip(1);
    let numbers = cells.next()?.split_whitespace().map(|word| word.parse().ok());
    let numbers: Vec<u32> = numbers.collect::<Option<_>>()?;
    let [gpu, gpu_instance, compute_instance, index] = numbers[..] else { return None };
    let (used, total) = cells.next()?.split_once('/')?;
    let size = |text: &str| {
        let text = text.trim();
        SmiCell::of(text.strip_suffix("MiB").unwrap_or(text)).bytes()
    };
    let row = MigRow { gpu_instance, compute_instance, used: size(used), total: size(total) };
    Some(((gpu, index), row))
}

fn complete(instance: &mut MigInstance, row: Option<&MigRow>) {
    let unavailable =
        || Missing::new(Reason::Unknown, "not listed in the nvidia-smi table on that host");
    instance.gpu_instance = row.map(|row| row.gpu_instance).ok_or_else(unavailable).into();
    instance.compute_instance = row.map(|row| row.compute_instance).ok_or_else(unavailable).into();
    let unsupported =
        || Reading::missing(Reason::Unsupported, "not reported by nvidia-smi for MIG instances");
    let memory = row.map(|row| Memory {
        used: row.used.clone(),
        total: row.total.clone(),
        free: unsupported(),
        reserved: unsupported(),
    });
    let memory = memory.unwrap_or_else(|| Memory {
        used: Reading::Missing(unavailable()),
        total: Reading::Missing(unavailable()),
        free: Reading::Missing(unavailable()),
        reserved: Reading::Missing(unavailable()),
    });
    instance.memory = memory.checked();
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn read(devices: &str, table: &str) -> Instances {
        let lines = |text: &str| -> Vec<Vec<u8>> {
            text.lines().map(|line| line.as_bytes().to_vec()).collect()
        };
        instances(&lines(devices), &lines(table))
    }

    #[test]
    fn merges_names_and_memory_from_both_lists() {
        // Output of drivers 450, 535 and 580.
        let devices = "GPU 0: NVIDIA A100-SXM4-40GB (UUID: GPU-9de3d0e8-33f5)\n\
                       \x20 MIG 3g.20gb     Device  0: (UUID: MIG-dc34c2fd-4bd7)\n\
                       \x20 MIG 1c.1g.5gb Device 1: (UUID: MIG-GPU-9de3d0e8/9/0)\n\
                       GPU 1: NVIDIA A100-SXM4-40GB (UUID: GPU-9de3d0e8-33f6)\n\
                       GPU 2: NVIDIA A100-SXM4-40GB (UUID: GPU-9de3d0e8-33f7)\n\
                       \x20 MIG 1g.5gb     Device  0: (UUID: MIG-dc34c2fd-4bd8)\n";
        let table = "|  0    2   0   0  |             142MiB / 20096MiB    | 56      0 |  4   0    2    0    0 |\n\
                     |  0   13   1   1  |      3MiB /  4864MiB | 14      0 |  1   0    0    0    0 |\n";
        let all = read(devices, table);
        assert_eq!(all.keys().copied().collect::<Vec<_>>(), [0, 2]);
        let [first, second] = &all[&0][..] else { panic!("{all:?}") };
        assert_eq!(
            (first.profile.value().map(String::as_str), first.gpu_instance.get()),
            (Some("3g.20gb"), Some(2))
        );
        assert_eq!(
            (first.memory.used.get(), first.memory.total.get()),
            (Some(Bytes::mib(142)), Some(Bytes::mib(20_096)))
        );
        assert_eq!((second.gpu_instance.get(), second.compute_instance.get()), (Some(13), Some(1)));
        assert_eq!(&*second.uuid.0, "MIG-GPU-9de3d0e8/9/0");
        assert!(first.memory.free.why().is_some());
        // If an instance is missing from the table, each of its missing values has a reason.
        assert!(all[&2][0].memory.used.why().is_some());
    }

    #[test]
    fn limits_and_escapes_the_lists() {
        let device = "  MIG \x1b[2J Device 0: (UUID: MIG-\x07)\n";
        let all = read(&("GPU 0: x\n".to_owned() + &device.repeat(100)), "");
        assert_eq!(all[&0].len(), MAX_INSTANCES_PER_GPU);
        assert_eq!(
            (&*all[&0][0].uuid.0, all[&0][0].profile.value().map(String::as_str)),
            ("MIG-^G", Some("^[[2J"))
        );
        // The used memory exceeds the total.
        let all = read(&("GPU 0: x\n".to_owned() + device), "| 0 1 0 0 | 7MiB / 6MiB |");
        assert_eq!(all[&0][0].memory.used.why().map(|why| why.reason), Some(Reason::Implausible));
    }

    proptest! {
        #[test]
        fn no_text_causes_a_panic(device: String, table: String) {
            let _ = read(&format!("GPU 0: x\n  MIG {device}\n{device}"), &format!("|{table}\n| 0 0 0 0 |{table}"));
        }
    }
}
