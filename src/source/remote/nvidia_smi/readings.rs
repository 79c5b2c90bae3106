//! Unparsed output of the remote script: the lines of a round, and the lines of less frequent detail queries. The
//! number of lines is limited.

use gputop_model::{Mono, UnixMillis};

/// Maximum number of lines of each kind.
pub(super) const MAX_GPUS: usize = 256;
pub(super) const MAX_PROCESSES: usize = 1024;

/// Monotonic time since boot, and wall-clock time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Clocks {
    pub mono: Mono,
    pub time: UnixMillis,
}

/// The script's output for one round of readings.
#[derive(Debug, Default)]
pub(super) struct Round {
    pub number: u64,
    pub clocks: Clocks,
    /// Lines of /proc/meminfo: `MemTotal:  792574036 kB`
    pub memory: Vec<Vec<u8>>,
    /// CPU line: `cpu  10132153 290696 …`
    pub cpu: Vec<u8>,
    /// Load line: `0.20 0.18 0.12 1/80 11206`
    pub load: Vec<u8>,
    /// GPU lines with fields in the order of the query, or error text.
    pub gpus: Vec<Vec<u8>>,
    pub gpus_exit: Option<i32>,
    /// Compute process lines: `GPU-…, 426, 1542, python3`
    pub apps: Vec<Vec<u8>>,
    pub apps_exit: Option<i32>,
    /// `/proc/PID/stat`
    pub stats: Vec<Vec<u8>>,
    /// `ps` lines: `  426 ana   python3 train.py`
    pub ps_lines: Vec<Vec<u8>>,
}

impl Round {
    pub(super) fn take(&mut self, kind: u8, text: &[u8]) {
        match kind {
            b'u' => self.clocks = clocks(text).unwrap_or_default(),
            b'm' => put(&mut self.memory, 16, text),
            b'c' => self.cpu = text.to_vec(),
            b'l' => self.load = text.to_vec(),
            b'g' => put(&mut self.gpus, MAX_GPUS, text),
            b'e' => self.gpus_exit = number(text),
            b'a' => put(&mut self.apps, MAX_PROCESSES, text),
            b'd' => self.apps_exit = number(text),
            b's' => put(&mut self.stats, MAX_PROCESSES, text),
            b'p' => put(&mut self.ps_lines, MAX_PROCESSES, text),
            _ => {}
        }
    }
}

/// Expensive data that is requested less often than rounds.
#[derive(Debug, Default)]
pub(super) struct SmiDetails {
    pub number: u64,
    /// Complete output of `nvidia-smi pmon`.
    pub usage: Vec<Vec<u8>>,
    /// Output of `nvidia-smi -L`, if MIG is on.
    pub devices: Vec<Vec<u8>>,
    /// Rows of the MIG table of `nvidia-smi`.
    pub instances: Vec<Vec<u8>>,
}

impl SmiDetails {
    pub(super) fn take(&mut self, kind: u8, text: &[u8]) {
        match kind {
            b't' => put(&mut self.usage, MAX_PROCESSES, text),
            b'v' => put(&mut self.devices, MAX_PROCESSES, text),
            b'w' => put(&mut self.instances, MAX_PROCESSES, text),
            _ => {}
        }
    }
}

fn put(list: &mut Vec<Vec<u8>>, max: usize, text: &[u8]) {
    if list.len() < max && !text.is_empty() {
        list.push(text.to_vec());
    }
}

/// Parses uptime and Unix time in seconds: `12345.67 1763668000`.
pub(super) fn clocks(text: &[u8]) -> Option<Clocks> {
    let (up, wall) = std::str::from_utf8(text).ok()?.split_once(' ')?;
    let up: f64 = up.parse().ok()?;
    let wall: i64 = wall.trim().parse().ok()?;
    // Float-to-integer conversion saturates.
    Some(Clocks { mono: Mono((up * 1_000.0) as u64), time: UnixMillis(wall.saturating_mul(1_000)) })
}

pub(super) fn number<N: std::str::FromStr>(text: &[u8]) -> Option<N> {
    std::str::from_utf8(text).ok()?.trim().parse().ok()
}

pub(super) fn split_words(text: &[u8]) -> impl Iterator<Item = &[u8]> {
    text.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty())
}
