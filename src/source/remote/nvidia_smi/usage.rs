//! Usage of each process on its GPU, from `nvidia-smi pmon -c 1 -s um`, the only source that lists graphics processes.
//!
//! Output of drivers 535 and 580. Older drivers print fewer columns, so columns are found by name:
//!
//! ```text
//! # gpu         pid   type     sm    mem    enc    dec    jpg    ofa     fb   ccpm    command
//! # Idx           #    C/G      %      %      %      %      %      %     MB     MB    name
//!     0       2481     G      -      -      -      -      -      -    624      0    Xorg
//!     0    1360690     C     99     30      -      -      -      -    382      0    python
//!     1          -     -      -      -      -      -      -      -      -      -    -
//! ```
//!
//! In this output, MB means MiB. A dash marks a missing sample. A line of dashes marks a GPU without processes.

use gputop_model::text::visible;
use gputop_model::{Bytes, ContextKind, Gpu, Missing, Mono, Percent, Pid, Reading, Reason};

use super::cell::SmiCell;

/// The newest process list from `nvidia-smi pmon`.
#[derive(Debug)]
pub(super) struct Usage {
    rows: Vec<Row>,
    /// Reason why a process is missing from the usage list.
    why: Missing,
    pub at: Option<Mono>,
}

/// A process on one GPU.
#[derive(Debug)]
pub(super) struct Row {
    /// NVML index of the GPU.
    gpu: u32,
    pub pid: Pid,
    pub kind: ContextKind,
    pub sm: Reading<Percent>,
    pub memory_bandwidth: Reading<Percent>,
    pub vram: Reading<Bytes>,
    /// Process name, truncated after about 15 characters.
    pub name: Reading<String>,
}

impl Default for Usage {
    fn default() -> Self {
        Self {
            rows: Vec::new(),
            why: Missing::new(
                Reason::NotRead,
                "not read yet; queried through nvidia-smi every few seconds",
            ),
            at: None,
        }
    }
}

impl Usage {
    pub(super) fn read(lines: &[Vec<u8>], at: Option<Mono>) -> Self {
        let (mut rows, mut columns, mut words) = (Vec::new(), None, None);
        for line in lines.iter().filter_map(|line| std::str::from_utf8(line).ok()) {
            match (line.strip_prefix("# gpu"), &columns) {
                (Some(_), _) => columns = Some(Columns::of(line)),
                (None, Some(columns)) => rows.extend(columns.row(line)),
                (None, None) => words = words.or(Some(line)).filter(|line| !line.trim().is_empty()),
            }
        }
        let why = match (columns, words) {
            (Some(_), _) => Self::default().why,
            (None, Some(words)) => {
                let words = visible(words.trim().as_bytes(), 60);
                Missing::new(
                    Reason::Unknown,
                    format!("`nvidia-smi pmon` on that host reports: {words}"),
                )
            }
            (None, None) => {
                Missing::new(Reason::Unknown, "`nvidia-smi pmon` on that host printed nothing")
            }
        };
        Self { rows, why, at }
    }

    pub(super) fn of(&self, gpu: u32, pid: Pid) -> Option<&Row> {
        self.rows.iter().find(|row| (row.gpu, row.pid) == (gpu, pid))
    }

    /// Returns the graphics-only processes of a GPU, which appear in no other list.
    pub(super) fn graphics(&self, gpu: u32) -> impl Iterator<Item = &Row> {
        let is_graphics = move |row: &&Row| row.gpu == gpu && row.kind == ContextKind::Graphics;
        self.rows.iter().filter(is_graphics)
    }

    pub(super) fn graphics_pids(&self) -> impl Iterator<Item = Pid> {
        self.rows.iter().filter(|row| row.kind == ContextKind::Graphics).map(|row| row.pid)
    }

    /// Returns the reason why a process on this GPU is missing from the usage list.
    pub(super) fn missing_reason(&self, gpu: &Gpu) -> Missing {
        if gpu.mig_enabled.get() == Some(true) {
            let words = "MIG is on: nvidia-smi does not report usage per instance";
            return Missing::new(Reason::Unsupported, words);
        }
        self.why.clone()
    }
}

/// Column names of the process list, in order.
struct Columns<'a>(Vec<&'a str>);

impl<'a> Columns<'a> {
    fn of(header: &'a str) -> Self {
        Self(header.split_whitespace().skip(1).collect())
    }

    fn row(&self, line: &str) -> Option<Row> {
        let words: Vec<&str> = line.split_whitespace().collect();
        let word = |name: &str| {
            let at = self.0.iter().position(|column| *column == name);
            at.and_then(|at| words.get(at)).copied()
        };
        let cell = |name: &str| match word(name) {
            Some("-") => {
                SmiCell::missing(Missing::new(Reason::Unknown, "nvidia-smi has no sample"))
            }
            Some(word) => SmiCell::of(word),
            None => SmiCell::unknown(),
        };
        Some(Row {
            gpu: word("gpu")?.parse().ok()?,
            pid: Pid(word("pid")?.parse().ok()?),
            kind: kind(word("type")?),
            sm: cell("sm").percent(),
            memory_bandwidth: cell("mem").percent(),
            vram: cell("fb").bytes(),
            name: cell("command").text(),
        })
    }
}

/// Parses the process type as described in nvidia-smi(1): compute, graphics or both. The prefix M marks an MPS client,
/// which is a compute process.
fn kind(word: &str) -> ContextKind {
    match word {
        "C" | "M" | "M+C" => ContextKind::Compute,
        "G" => ContextKind::Graphics,
        "C+G" | "M+C+G" => ContextKind::Mixed,
        _ => ContextKind::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn read(text: &str) -> Usage {
        let lines: Vec<Vec<u8>> = text.lines().map(|line| line.as_bytes().to_vec()).collect();
        Usage::read(&lines, Some(Mono(7)))
    }

    #[test]
    fn finds_columns_by_name_for_every_driver() {
        let new = "# gpu         pid   type     sm    mem    enc    dec    jpg    ofa     fb   ccpm    command \n\
                   # Idx           #    C/G      %      %      %      %      %      %     MB     MB    name \n\
                   \x20   0       2481     G      -      -      -      -      -      -    624      0    Xorg \n\
                   \x20   0    1360690     C     99     30      -      -      -      -    382      0    python\n\
                   \x20   0       1941   C+G      -      -      -      -      -      -      5      0    two words\n\
                   \x20   1          -     -      -      -      -      -      -      -      -      -    -  \n";
        let old = "# gpu        pid  type    sm   mem   enc   dec    fb   command\n\
                   # Idx          #   C/G     %     %     %     %    MB   name\n\
                   \x20   0    1360690     C    99    30     -     -   382   python\n\
                   \x20   0       2481     G     -     -     -     -   624   Xorg\n";
        for text in [new, old] {
            let usage = read(text);
            let python = usage.of(0, Pid(1_360_690)).expect("it is listed");
            let values = (python.sm.get(), python.memory_bandwidth.get(), python.vram.get());
            assert_eq!(values, (Some(Percent(99.0)), Some(Percent(30.0)), Some(Bytes::mib(382))));
            let pids: Vec<Pid> = usage.graphics(0).map(|row| row.pid).collect();
            assert_eq!(pids, [Pid(2_481)]);
            let xorg = usage.of(0, Pid(2_481)).expect("it is listed");
            assert_eq!(
                xorg.sm.why().map(ToString::to_string).as_deref(),
                Some("nvidia-smi has no sample")
            );
            assert_eq!(usage.graphics(1).count(), 0);
        }
        assert_eq!(read(new).of(0, Pid(1_941)).map(|row| row.kind), Some(ContextKind::Mixed));
    }

    #[test]
    fn error_text_becomes_the_reason() {
        let why = |text| read(text).why.to_string();
        let said = "\nInvalid combination of input arguments. \x1b[2JPlease run 'nvidia-smi pmon -h' for help.";
        assert_eq!(
            why(said),
            "`nvidia-smi pmon` on that host reports: Invalid combination of input arguments. ^[[2JPlease run 'nv…"
        );
        assert_eq!(why(""), "`nvidia-smi pmon` on that host printed nothing");
        let share =
            read("# gpu pid type sm\n0 7 C 101\n").of(0, Pid(7)).and_then(|row| row.sm.get());
        assert_eq!(share, None, "a share cannot exceed 100 %");
    }

    proptest! {
        #[test]
        fn no_text_causes_a_panic(header in "# gpu( pid| type| sm| fb| command){0,6}", text: String) {
            read(&format!("{header}\n{text}\n0 1 C {text}"));
        }
    }
}
