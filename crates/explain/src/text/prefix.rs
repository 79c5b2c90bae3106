//! Removes line prefixes added by launchers, containers, loggers and e-mail programs, and extracts the writer and the
//! time.

use std::sync::OnceLock;

use regex::{Regex, RegexBuilder};

use crate::text::log_line::LogLine;

/// Maximum number of prefixes to remove from a line: docker, time, launcher, rank, box.
const MAX_PREFIXES: usize = 6;

/// Regular expressions for line prefixes. The groups `rank`, `writer` and `host` identify the writer; `time` is the timestamp.
const PREFIXES: &[&str] = &[
    // torch 2.3 and later: `[rank3]:`, sometimes without the opening bracket; torchrun: `[default3]:`, `[trainer3]:`.
    r"^\[?(?:rank|Rank |default|trainer|worker)(?<rank>\d{1,6})\]: ?",
    // Open MPI prints `[1,3]<stderr>:`.
    r"^(?<writer>\[\d+,(?<rank>\d{1,6})\]<std)(?:out|err)>: ?",
    // Ray prints `(RayWorker pid=12, ip=…)`; vLLM prints `(EngineCore_0 pid=12)`, `(VllmWorker rank=1 pid=12)`.
    r"^\((?<writer>[A-Za-z][\w.:() -]{0,80}?(?: rank=(?<rank>\d{1,6}))?[ ,]+pid=\d+)(?:, ip=[0-9a-fA-F.:]{1,64})?\) ?",
    // docker compose prints `svc-1  | `.
    r"^(?<writer>[\w.-]{1,64}[-_]\d{1,4}) +\| ?",
    // syslog and journald print `Nov 20 12:00:00 host python[12]: `.
    r"^(?<time>[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d) (?<host>[\w.-]{1,128}) (?<writer>[\w./@:-]{1,64}?)(?:\[\d+\])?: ",
    // dmesg prints `[ 123.456789] `, `[Tue Nov  3 12:00:00 2026] `, `<3>`.
    r"^(?:<\d{1,2}>)?\[ {0,8}\d{1,9}\.\d{3,6}\] ",
    r"^\[(?<time>[A-Z][a-z]{2} [A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d \d{4})\] ",
    // ISO times, optionally followed by Kubernetes' `stderr F `.
    r"^\[?(?<time>\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?:Z|[+-]\d\d:?\d\d)?)\]?:?(?: |$)(?:(?:stdout|stderr) [FP] )?",
    // Times without a date: `[12:00:00.123]: `.
    r"^\[(?<time>\d\d:\d\d:\d\d[.,]\d{1,6})\]:? ",
    // PyTorch's Python modules: `W1024 12:00:00.123000 140404233111360 torch/_dynamo/convert_frame.py:1009] [0/1] `.
    r"^[EWIF]\d{4} \d\d:\d\d:\d\d\.\d{3,9} (?:\d{1,20} )?torch/_dynamo/[a-z_/]{1,80}\.py:\d{1,6}\] ",
    // Python's logging and loguru print ` - ERROR - name - ` or ` | INFO     | name:f:3 - ` after the time.
    r"^ ?[-|] (?:DEBUG|INFO|SUCCESS|WARNING|WARN|ERROR|CRITICAL|FATAL|EXCEPTION) {0,8} [-|] (?:[\w.:/<>-]{1,100} [-|] )?",
    r"^ ?- [\w.:/-]{1,80} - (?:DEBUG|INFO|WARNING|WARN|ERROR|CRITICAL|FATAL) - ",
    // vLLM prints `ERROR 06-25 05:06:30 [core.py:700] `, up to 0.8 without brackets around the location.
    r"^(?:DEBUG|INFO|WARNING|ERROR|CRITICAL) \d\d-\d\d \d\d:\d\d:\d\d (?:\[[\w./]{1,80}\.py:\d{1,6}|[\w./]{1,80}\.py:\d{1,6})\](?: |$)",
    // pytest prints `E   `.
    r"^E {3,}",
];

const SIDES: [char; 4] = ['│', '┃', '║', '|'];

/// Removes all prefixes from a line. A line that contains only a box border becomes empty.
pub(super) fn without_prefixes(raw: &str, number: u64) -> LogLine {
    let text = raw.trim_end();
    let mut line = LogLine {
        number,
        last: number,
        width: raw.chars().count(),
        cut_at_blank: raw.len() == text.len() + 1,
        is_padded: raw.len() > text.len() + 1 || text.ends_with(SIDES),
        ..LogLine::default()
    };
    let mut rest = text;
    for _ in 0..MAX_PREFIXES {
        let Some(after) = remove_one(rest, &mut line) else {
            break;
        };
        rest = after;
    }
    if line.time.is_none() {
        line.time = glog_time(rest);
    }
    line.rank = line.rank.or_else(|| reported_rank(rest));
    let mut text = unboxed(rest);
    if text.chars().all(|c| "─━═╭╮╰╯┏┓┗┛+-=".contains(c)) {
        text = "";
    }
    // Remove the backticks around an entire line. They come from a message quoted in a bug report.
    let bare = text.trim();
    if bare.len() > 2
        && bare.matches('`').count() == 2
        && bare.starts_with('`')
        && bare.ends_with('`')
    {
        text = &bare[1..bare.len() - 1];
    }
    text.clone_into(&mut line.text);
    line
}

/// Returns the time from a line in glog format, which PyTorch and TensorFlow use: `0626 05:06:30.929096625` (month, day
/// and time) for `[E626 05:06:30.929096625 ProcessGroupNCCL.cpp:632]`.
fn glog_time(text: &str) -> Option<String> {
    let rest = text.strip_prefix('[').unwrap_or(text).strip_prefix(['E', 'W', 'I', 'F'])?;
    let (day, rest) = rest.split_once(' ')?;
    let (time, _) = rest.split_once(' ')?;
    let is_day = (3..=4).contains(&day.len()) && day.bytes().all(|b| b.is_ascii_digit());
    let is_time = time.len() > 8 && time.bytes().all(|b| b.is_ascii_digit() || b":.".contains(&b));
    (is_day && is_time).then(|| format!("{day:0>4} {time}"))
}

/// Returns the rank that PyTorch names in a line: `[E ProcessGroupNCCL.cpp:916] [Rank 1] NCCL watchdog thread …`.
fn reported_rank(text: &str) -> Option<u32> {
    let (place, rest) = text.strip_prefix('[')?.split_once("] [")?;
    let (name, _) = rest.split_once(']').filter(|_| place.contains("ProcessGroup"))?;
    let (_, rank) = name.rsplit_once("Rank ")?;
    rank.parse().ok()
}

fn unboxed(text: &str) -> &str {
    let inner = text.trim_start();
    // Leave table rows (in documents or nvidia-smi output) unchanged, because their bars are not the sides of a box.
    if inner.matches('|').count() > 2 {
        return text;
    }
    match inner.strip_prefix(SIDES) {
        Some(inner) => {
            let inner = inner.trim_end().trim_end_matches(SIDES).trim_end();
            inner.strip_prefix(' ').unwrap_or(inner)
        }
        None => text,
    }
}

/// Removes one prefix from `text` and stores the prefix's writer and time in `line`.
fn remove_one<'a>(text: &'a str, line: &mut LogLine) -> Option<&'a str> {
    let first = text.chars().next()?;
    if first == '>' {
        return unquoted(text);
    }
    for prefix in compiled() {
        let Some(found) = prefix.captures(text) else {
            continue;
        };
        if let Some(rank) = found.name("rank") {
            line.rank = rank.as_str().parse().ok();
        }
        if let Some(host) = found.name("host") {
            line.host = host.as_str().to_owned();
        }
        if let Some(time) = found.name("time") {
            line.time.get_or_insert_with(|| time.as_str().to_owned());
        }
        if let Some(writer) = found.name("writer").or_else(|| found.name("rank")) {
            line.writer = writer.as_str().to_owned();
        }
        let prefix = found.get(0)?;
        line.is_warning |= prefix.as_str().contains("WARNING");
        return Some(&text[prefix.end()..]);
    }
    None
}

/// Removes an e-mail quote marker: `> text`. `>>> ` is Python's prompt and remains.
fn unquoted(text: &str) -> Option<&str> {
    (!text.starts_with(">>>")).then(|| text[1..].strip_prefix(' ').unwrap_or(&text[1..]))
}

/// Splits a line into its rank label and the following text: `3: text`.
pub(super) fn label(text: &str) -> Option<(u32, &str)> {
    let (number, rest) = text.trim_start().split_once(": ")?;
    (number.len() <= 5 && number.bytes().all(|b| b.is_ascii_digit()))
        .then(|| Some((number.parse().ok()?, rest)))?
}

fn compiled() -> &'static [Regex] {
    static COMPILED: OnceLock<Vec<Regex>> = OnceLock::new();
    COMPILED.get_or_init(|| {
        // Skip patterns that do not compile instead of crashing the program. A test checks that all of them compile.
        let ascii = |p: &str| RegexBuilder::new(p).unicode(false).build().ok();
        PREFIXES.iter().filter_map(|p| ascii(p)).collect()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_pattern_compiles() {
        assert_eq!(compiled().len(), PREFIXES.len());
    }

    #[test]
    fn removes_prefixes_and_reads_the_rank() {
        for (raw, rank, text) in [
            ("[rank3]: RuntimeError: x", Some(3), "RuntimeError: x"),
            ("rank1]: RuntimeError: x", Some(1), "RuntimeError: x"),
            ("[default0]:RuntimeError: x", Some(0), "RuntimeError: x"),
            ("[default0]: RuntimeError: x", Some(0), "RuntimeError: x"),
            ("[1,2]<stderr>:RuntimeError: x", Some(2), "RuntimeError: x"),
            ("(RayWorker pid=12, ip=10.0.0.1) x", None, "x"),
            ("(VllmWorker rank=1 pid=12) x", Some(1), "x"),
            ("trainer-1  | x", None, "x"),
            ("Nov 20 12:00:00 node kernel: NVRM: Xid", None, "NVRM: Xid"),
            ("[12345.678901] NVRM: Xid", None, "NVRM: Xid"),
            ("2026-11-20T12:00:00.123Z stderr F x", None, "x"),
            ("2026-11-20 12:00:00,123 x", None, "x"),
            ("E   RuntimeError: x", None, "RuntimeError: x"),
            ("2026-11-20 12:00:00,123 - ERROR - worker - x", None, "x"),
            ("2026-11-20 12:00:00.123 | INFO     | a.b:step:344 - x", None, "x"),
            ("> > RuntimeError: x", None, "RuntimeError: x"),
            ("│ RuntimeError: x      │", None, "RuntimeError: x"),
            ("plain: text", None, "plain: text"),
        ] {
            let line = without_prefixes(raw, 1);
            assert_eq!((line.rank, line.text.as_str()), (rank, text), "{raw}");
        }
    }

    #[test]
    fn reads_the_time_of_glog_lines() {
        let line = without_prefixes("[rank2]:[E626 05:06:30.929 P.cpp:632] [Rank 2] late", 1);
        assert_eq!(line.time.as_deref(), Some("0626 05:06:30.929"));
        assert_eq!(line.text, "[E626 05:06:30.929 P.cpp:632] [Rank 2] late");
        assert_eq!(
            glog_time("E0506 17:45:45.421956       1 x"),
            Some("0506 17:45:45.421956".into())
        );
        assert_eq!(glog_time("Epoch 3 of 5"), None);
    }

    #[test]
    fn a_label_is_a_number_and_a_colon() {
        assert_eq!(label("11: x"), Some((11, "x")));
        assert_eq!(label("line 11: x"), None);
    }
}
