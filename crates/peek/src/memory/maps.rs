//! Mapped files of a process and the start addresses of ELF images, from `/proc/PID/maps`.
//!
//! `7f2a00000000-7f2a00031000 r--p 00000000 08:01 42  /venv/…/libc10_cuda.so` and the 3 or 4 lines after it describe
//! one image. A library may be mapped a second time as a data file. Of the two groups of mappings, the image is the one
//! that contains executable code.

use std::path::Path;

use procfs::process::{MMPermissions, MMapPath, MemoryMap};
use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Mapping {
    pub start: u64,
    pub end: u64,
    pub executable: bool,
    /// Offset of the mapping in its file.
    pub offset: u64,
    /// Path of the mapped file. Empty for anonymous memory and for the kernel's special mappings (`[heap]`).
    pub file: String,
    /// True for a heap mapping: private, writable memory without a file, except stacks.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_heap: bool,
    /// True for `[heap]`, which the main thread allocates from.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_main_heap: bool,
}

/// Suffix that the kernel appends to the name of a deleted file.
const DELETED: &str = " (deleted)";

impl Mapping {
    /// Returns the name of the file: `libc10_cuda.so` for `/venv/lib/libc10_cuda.so (deleted)`.
    pub fn file_name(&self) -> &str {
        let file = self.file.strip_suffix(DELETED).unwrap_or(&self.file);
        Path::new(file).file_name().and_then(|name| name.to_str()).unwrap_or_default()
    }
}

impl From<MemoryMap> for Mapping {
    fn from(map: MemoryMap) -> Self {
        let is_stack = matches!(map.pathname, MMapPath::Stack | MMapPath::TStack(_));
        let heap = MMPermissions::READ | MMPermissions::WRITE | MMPermissions::PRIVATE;
        let is_main_heap = map.pathname == MMapPath::Heap;
        let file = match map.pathname {
            MMapPath::Path(path) => path.to_string_lossy().into_owned(),
            _ => String::new(),
        };
        Self {
            start: map.address.0,
            end: map.address.1,
            executable: map.perms.contains(MMPermissions::EXECUTE),
            offset: map.offset,
            is_heap: file.is_empty() && !is_stack && map.perms.contains(heap),
            is_main_heap,
            file,
        }
    }
}

/// Returns the start addresses of the ELF images of the wanted files, in ascending order.
pub fn images(maps: &[Mapping], is_wanted: impl Fn(&Mapping) -> bool) -> Vec<u64> {
    let mut groups: Vec<(u64, bool)> = Vec::new();
    for map in maps.iter().filter(|map| !map.file.is_empty() && is_wanted(map)) {
        let is_start = groups.last().is_none_or(|(_, has_code)| !map.executable || *has_code);
        if map.offset == 0 && is_start {
            groups.push((map.start, map.executable));
        } else if let Some((_, has_code)) = groups.last_mut() {
            *has_code |= map.executable;
        }
    }
    let is_loaded = groups.iter().any(|(_, has_code)| *has_code);
    groups
        .into_iter()
        .filter(|(_, has_code)| *has_code || !is_loaded)
        .map(|(start, _)| start)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(start: u64, executable: bool, offset: u64, file: &str) -> Mapping {
        Mapping {
            start,
            end: start + 0x1000,
            executable,
            offset,
            file: file.into(),
            ..Mapping::default()
        }
    }

    #[test]
    fn skips_copy_that_is_mapped_only_as_data() {
        let so = "/venv/libc10_cuda.so (deleted)";
        let maps = [
            map(0x1000, false, 0, so),
            map(0x5000, false, 0, so),
            map(0x6000, true, 0x1000, so),
            map(0x7000, false, 0x2000, so),
            map(0x8000, false, 0, "/venv/libc10.so"),
            map(0x9000, true, 0, "/other/libc10_cuda.so"),
        ];
        let found = images(&maps, |map| map.file_name() == "libc10_cuda.so");
        assert_eq!(found, [0x5000, 0x9000]);
        assert_eq!(images(&maps[..1], |_| true), [0x1000]);
    }
}
