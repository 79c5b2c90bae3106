//! Facts about a remote host and the fields that its `nvidia-smi` supports, reported once.

use std::collections::BTreeSet;

use gputop_model::host::PidNamespace;
use gputop_model::text::visible;

use super::fields::field_names;
use super::readings::number;

/// Maximum number of field names to read from the help text.
const MAX_NAMES: usize = 2048;
const MAX_TEXT: usize = 255;

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
    /// Newest CUDA version that the driver supports.
    pub cuda: Option<String>,
    /// Field names supported by this `nvidia-smi`.
    names: BTreeSet<String>,
}

impl Facts {
    /// Returns the query with the [`field_names`] supported by this `nvidia-smi`, or with the oldest name of each field
    /// if there is no help text.
    pub(super) fn query(&self) -> String {
        field_names().filter_map(|names| self.name_of(names)).collect::<Vec<_>>().join(",")
    }

    pub(super) fn name_of(&self, names: &[&'static str]) -> Option<&'static str> {
        if self.names.is_empty() {
            return names.last().copied();
        }
        names.iter().copied().find(|name| self.names.contains(*name))
    }

    pub(super) fn take(&mut self, kind: u8, text: &[u8]) {
        let word = || Some(visible(text, MAX_TEXT)).filter(|word| !word.is_empty());
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
            // Help text that lists two names for one field: `"clocks.current.sm" or "clocks.sm"`
            b'F' if self.names.len() < MAX_NAMES => {
                let quoted = text.split(|byte| *byte == b'"').skip(1).step_by(2);
                self.names.extend(quoted.map(|name| visible(name, 80)));
            }
            _ => {}
        }
    }

    /// Parses `pid:[4026531836]`. This number is `PROC_PID_INIT_INO` in include/linux/proc_ns.h of the kernel: the
    /// initial PID namespace, which the driver uses.
    fn take_namespace(&mut self, text: &[u8]) {
        let id = text.strip_prefix(b"pid:[");
        self.namespace_id = id.and_then(|id| number(id.strip_suffix(b"]")?));
        self.namespace = PidNamespace::with_id(self.namespace_id);
    }
}

/// Parses `CUDA Version        : 13.0`, even if other versions precede it on the line. Since driver 610 the label is
/// `CUDA UMD Version`.
fn cuda(line: &[u8]) -> Option<String> {
    let (_, rest) = std::str::from_utf8(line).ok()?.split_once("CUDA")?;
    let (_, rest) = rest.split_once(':')?;
    let is_part = |c: char| c.is_ascii_digit() || c == '.';
    let version: String = rest.trim_start().chars().take_while(|c| is_part(*c)).collect();
    (1..=8).contains(&version.len()).then_some(version)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_the_cuda_version_under_each_label() {
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
