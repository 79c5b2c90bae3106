//! Parses the two kinds of kernel log lines that gputop uses: Xids and OOM kills.
//!
//! `NVRM: Xid (PCI:0000:3b:00): 31, pid=4242, name=python, Ch 00000008, intr 00000000. MMU Fault: …`
//! `Memory cgroup out of memory: Killed process 4242 (python) total-vm:…kB, anon-rss:…kB, …`

use gputop_model::text::visible;
use gputop_model::{Pid, Reading, Reason};

const MAX_CHARS: usize = 512;
/// Maximum length of the numeric header that precedes the text of a kernel record.
const MAX_HEADER: usize = 128;

#[derive(Debug, Clone, PartialEq)]
pub enum KernelLine {
    Xid(XidLine),
    OomKill(OomKill),
}

#[derive(Debug, Clone, PartialEq)]
pub struct XidLine {
    /// PCI address of the GPU: `0000:3b:00`.
    pub pci_bus: String,
    pub number: u64,
    /// PID in the host's PID namespace.
    pub pid: Reading<Pid>,
    /// Complete kernel log line, sanitized.
    pub text: String,
}

#[derive(Debug, Clone, PartialEq)]
pub struct OomKill {
    /// PID in the host's PID namespace.
    pub pid: Pid,
    /// Complete kernel log line, sanitized.
    pub text: String,
}

impl KernelLine {
    /// Parses a kernel record: `4,1234,5678901,-;text`. Returns `None` for records not written by the kernel and for
    /// unrelated lines.
    pub fn of_record(record: &[u8]) -> Option<Self> {
        let end = memchr::memchr(b';', &record[..record.len().min(MAX_HEADER)])?;
        let priority = record[..end].split(|&b| b == b',').next()?;
        let priority: u64 = std::str::from_utf8(priority).ok()?.parse().ok()?;
        if priority >> 3 != 0 {
            return None;
        }
        let bytes = &record[end + 1..];
        // Check the bytes before converting them to text, because most lines are unrelated.
        if !bytes.starts_with(XID) && memchr::memmem::find(bytes, KILLED).is_none() {
            return None;
        }
        let text = String::from_utf8_lossy(bytes);
        xid(&text).map(Self::Xid).or_else(|| oom_kill(&text).map(Self::OomKill))
    }
}

const XID: &[u8] = b"NVRM: Xid (";
const KILLED: &[u8] = b"Killed process ";

fn xid(text: &str) -> Option<XidLine> {
    let rest = text.strip_prefix("NVRM: Xid (")?;
    let (location, rest) = rest.split_once("): ")?;
    // Older drivers omit `PCI:`. With MIG, the instance follows: `PCI:0000:3b:00 GPU-I:05`.
    let bus = location.strip_prefix("PCI:").unwrap_or(location).split(' ').next()?;
    let bus = bus.strip_suffix(".0").unwrap_or(bus);
    let is_bus = |b: u8| b.is_ascii_hexdigit() || b == b':';
    if bus.is_empty() || bus.len() > 16 || !bus.bytes().all(is_bus) {
        return None;
    }
    Some(XidLine {
        pci_bus: bus.to_ascii_lowercase(),
        number: leading_number(rest)?,
        pid: pid(rest),
        text: visible(text.as_bytes(), MAX_CHARS),
    })
}

/// Parses the PID in `31, pid=4242, name=python, …`. The driver writes `pid='<unknown>'` for an unknown process.
fn pid(rest: &str) -> Reading<Pid> {
    let named = rest.split_once(", pid=").and_then(|(_, pid)| pid.split(',').next());
    let Some(named) = named else {
        return Reading::missing(Reason::Unsupported, "the driver does not name a process");
    };
    named.trim_matches('\'').parse().map(Pid).map_or_else(
        |_| Reading::missing(Reason::Unknown, "the driver does not know the process"),
        Reading::Value,
    )
}

fn oom_kill(text: &str) -> Option<OomKill> {
    // In Linux 4.19 and earlier, the reason for an OOM kill is on a separate line.
    let begins = ["Out of memory", "Memory cgroup out of memory", "Killed process "];
    if !begins.iter().any(|begin| text.starts_with(begin)) {
        return None;
    }
    let (_, rest) = text.split_once("Killed process ")?;
    let pid = leading_number(rest)?;
    let after_pid = rest.trim_start_matches(|c: char| c.is_ascii_digit());
    if !after_pid.starts_with(" (") && !after_pid.starts_with(", ") {
        return None;
    }
    Some(OomKill { pid: Pid(u32::try_from(pid).ok()?), text: visible(text.as_bytes(), MAX_CHARS) })
}

fn leading_number(text: &str) -> Option<u64> {
    let end = text.find(|c: char| !c.is_ascii_digit());
    text[..end.unwrap_or(text.len())].parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn line(text: &str) -> Option<KernelLine> {
        KernelLine::of_record(format!("4,1234,5678901,-;{text}").as_bytes())
    }

    fn xid_of(text: &str) -> (String, u64, Option<u32>) {
        match line(text) {
            Some(KernelLine::Xid(xid)) => (xid.pci_bus, xid.number, xid.pid.get().map(|pid| pid.0)),
            other => panic!("{text}: {other:?}"),
        }
    }

    #[test]
    fn parses_every_form_of_an_xid_line() {
        let cases = [
            (
                "NVRM: Xid (PCI:0000:3b:00): 79, pid=418, name=python, GPU has fallen off the bus.",
                ("0000:3b:00", 79, Some(418)),
            ),
            (
                "NVRM: Xid (PCI:0000:3B:00): 31, pid='<unknown>', name=<unknown>, Ch 00000008",
                ("0000:3b:00", 31, None),
            ),
            (
                "NVRM: Xid (PCI:0001:00:00 GPU-I:05): 13, pid=7, Graphics SM Warp Exception",
                ("0001:00:00", 13, Some(7)),
            ),
            ("NVRM: Xid (0000:03:00): 62, 0000(0000) 00000000 00000000", ("0000:03:00", 62, None)),
            (
                "NVRM: Xid (PCI:0000:3b:00): 154, GPU recovery action changed",
                ("0000:3b:00", 154, None),
            ),
            ("NVRM: Xid (PCI:0000:3b:00): 45, pid='1234', name=x", ("0000:3b:00", 45, Some(1_234))),
        ];
        for (text, (bus, number, pid)) in cases {
            assert_eq!(xid_of(text), (bus.to_owned(), number, pid), "{text}");
        }
    }

    #[test]
    fn parses_every_form_of_an_oom_killer_line() {
        let cases = [
            "Out of memory: Killed process 418 (python) total-vm:99kB, anon-rss:9kB, UID:1000 oom_score_adj:0",
            "Memory cgroup out of memory: Killed process 418 (py)thon) total-vm:99kB",
            "Out of memory (oom_kill_allocating_task): Killed process 418 (python) total-vm:99kB",
            "Killed process 418 (python) total-vm:99kB, anon-rss:9kB, file-rss:0kB",
            "Killed process 418, UID 1000, (python) total-vm:99kB",
        ];
        for text in cases {
            let expected = OomKill { pid: Pid(418), text: text.to_owned() };
            assert_eq!(line(text), Some(KernelLine::OomKill(expected)), "{text}");
        }
    }

    #[test]
    fn rejects_forged_and_unrelated_lines() {
        // Priority 12 means facility 1, the facility of every record that a program writes to /dev/kmsg.
        let forged = b"12,5,6,-;Out of memory: Killed process 418 (python)";
        assert_eq!(KernelLine::of_record(forged), None);
        for text in [
            "traps: Killed process 4 (x) general protection fault",
            "Out of memory: Killed process 418x (python)",
            "Out of memory: Killed process 99999999999 (python)",
            "NVRM: Xid (PCI:0000:3b:00): none",
            "NVRM: Xid (\x1b[2J): 79, x",
            "NVRM: GPU at PCI:0000:3b:00: GPU-1",
            "",
        ] {
            assert_eq!(line(text), None, "{text}");
        }
        let Some(KernelLine::Xid(xid)) =
            line("NVRM: Xid (PCI:0000:3b:00): 79, name=\x1b[31m\u{202e}")
        else {
            panic!("no Xid");
        };
        assert!(xid.text.ends_with(r"name=^[[31m\u{202e}"), "{}", xid.text);
    }

    proptest! {
        #[test]
        fn does_not_panic_on_any_bytes(record: Vec<u8>, text: String) {
            let _ = KernelLine::of_record(&record);
            let _ = line(&text);
            let _ = line(&format!("NVRM: Xid ({text}): {text}"));
        }
    }
}
