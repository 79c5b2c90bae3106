//! Who the host is, and what its `nvidia-smi` knows: told once.

use std::collections::BTreeSet;

use super::fields::FIELDS;
use super::lines::number;
use crate::model::host::PidNamespace;
use crate::model::text::visible;

/// A help holds no more names.
const MAX_NAMES: usize = 2048;
const MAX_WORD: usize = 255;

/// Who the host is.
#[derive(Debug, Default)]
pub(super) struct Facts {
    pub host: Option<String>,
    pub kernel: Option<String>,
    pub boot_id: Option<String>,
    pub namespace: PidNamespace,
    pub namespace_id: Option<u64>,
    pub ticks_per_second: Option<u64>,
    pub page_bytes: Option<u64>,
    pub cores: Option<u32>,
    pub uid: Option<u32>,
    /// The newest CUDA that the driver supports.
    pub cuda: Option<String>,
    /// The names that `nvidia-smi` has for what it can tell.
    names: BTreeSet<String>,
}

impl Facts {
    /// Those of [`FIELDS`] that this `nvidia-smi` knows, as it is asked for them; where it has no help, all, by their oldest
    /// names.
    pub(super) fn query(&self) -> String {
        let asked = FIELDS.iter().filter_map(|field| self.name_of(field.names));
        asked.collect::<Vec<_>>().join(",")
    }

    pub(super) fn name_of(&self, names: &[&'static str]) -> Option<&'static str> {
        if self.names.is_empty() {
            return names.last().copied();
        }
        names
            .iter()
            .copied()
            .find(|name| self.names.contains(*name))
    }

    pub(super) fn take(&mut self, kind: u8, text: &[u8]) {
        let word = || Some(visible(text, MAX_WORD)).filter(|word| !word.is_empty());
        match kind {
            b'N' => self.host = word(),
            b'K' => self.kernel = word(),
            b'B' => self.boot_id = word(),
            b'S' => self.take_namespace(text),
            b'T' => self.ticks_per_second = number(text).filter(|ticks| *ticks > 0),
            b'P' => self.page_bytes = number(text),
            b'C' => self.cores = number(text),
            b'U' => self.uid = number(text),
            b'V' if self.cuda.is_none() => self.cuda = cuda(text),
            // `"clocks.current.sm" or "clocks.sm"`
            b'F' if self.names.len() < MAX_NAMES => {
                let quoted = text.split(|byte| *byte == b'"').skip(1).step_by(2);
                self.names.extend(quoted.map(|name| visible(name, 80)));
            }
            _ => {}
        }
    }

    /// `pid:[4026531836]`, which is `PROC_PID_INIT_INO` of the kernel's include/linux/proc_ns.h: the driver's own.
    fn take_namespace(&mut self, text: &[u8]) {
        let inside = text.strip_prefix(b"pid:[");
        self.namespace_id = inside.and_then(|id| number(id.strip_suffix(b"]")?));
        self.namespace = match self.namespace_id {
            Some(4_026_531_836) => PidNamespace::Host,
            Some(_) => PidNamespace::Container,
            None => PidNamespace::Unknown,
        };
    }
}

/// `CUDA Version        : 13.0`, or in a headline behind other versions; since driver 610 it is called `CUDA UMD Version`.
fn cuda(line: &[u8]) -> Option<String> {
    let line = std::str::from_utf8(line).ok()?;
    let (_, behind) = line.split_once("CUDA")?;
    let (_, behind) = behind.split_once(':')?;
    let is_part = |c: char| c.is_ascii_digit() || c == '.';
    let version: String = behind
        .trim_start()
        .chars()
        .take_while(|c| is_part(*c))
        .collect();
    (1..=8).contains(&version.len()).then_some(version)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_of_cuda_is_found_under_each_of_its_names() {
        for (line, version) in [
            ("CUDA Version        : 13.0", Some("13.0")),
            ("CUDA UMD version    : 13.3", Some("13.3")),
            (
                "| NVIDIA-SMI 470.256.02   Driver Version: 470.256.02   CUDA Version: 11.4     |",
                Some("11.4"),
            ),
            (
                "| NVIDIA-SMI 610.57.04   KMD Version: 610.57.04   CUDA UMD Version: 13.3     |",
                Some("13.3"),
            ),
            ("CUDA Version: N/A", None),
            ("CUDA Version: 1111111111111.0", None),
            ("CUDA", None),
        ] {
            assert_eq!(cuda(line.as_bytes()).as_deref(), version, "{line}");
        }
    }
}
