//! Parser for `/proc/PID/stat`, written by hand because the procfs crate's `Stat` parses 52 fields and takes three times
//! as long.
//!
//! Example: `418 (python (x) 1) S 400 418 …`. The name may contain spaces, parentheses and newlines, so it ends at the
//! *last* closing parenthesis. Later fields cannot contain parentheses.

use super::process::RunState;
use super::units::{Pid, StartTicks};

/// Parsed fields of a `/proc/PID/stat` line, borrowed from the buffer.
#[derive(Debug, PartialEq)]
pub struct Stat<'a> {
    pub pid: Pid,
    pub name: &'a [u8],
    pub state: RunState,
    pub parent: Pid,
    /// True for a thread of the kernel, which never uses a GPU.
    pub is_kernel_thread: bool,
    /// Number of page faults that had to wait for storage.
    pub major_faults: u64,
    /// User and system CPU time in clock ticks.
    pub cpu_ticks: u64,
    pub start: StartTicks,
    pub rss_pages: u64,
    /// Address of the process's arguments. A different address means that the process called exec, because the kernel
    /// randomizes the address at each exec. 0 if this user is not permitted to see it.
    pub arguments: u64,
    /// Wait status of a zombie. 0 for other processes, or if this user is not permitted to see it.
    pub wait_status: i32,
}

impl<'a> Stat<'a> {
    /// Parses a `/proc/PID/stat` line. Returns `None` if it is malformed or truncated before its 24th field.
    pub fn parse(line: &'a [u8]) -> Option<Self> {
        let open = line.iter().position(|&b| b == b'(')?;
        let close = line.iter().rposition(|&b| b == b')')?;
        let name = line.get(open + 1..close)?;
        let pid = Pid(u32::try_from(number(line[..open].trim_ascii())?).ok()?);
        // The first field after the name is number 3, the state.
        let mut fields = line.get(close + 2..)?.split(|&b| b == b' ');
        let state = run_state(*fields.next()?.first()?);
        let parent = Pid(u32::try_from(number(fields.next()?)?).ok()?);
        let flags = number(fields.nth(9 - 5)?)?;
        let major_faults = number(fields.nth(12 - 10)?)?;
        let user = number(fields.nth(14 - 13)?)?;
        let system = number(fields.next()?)?;
        let start = number(fields.nth(22 - 16)?)?;
        // A kernel thread may report a negative size.
        let rss_pages = number(fields.nth(24 - 23)?).unwrap_or(0);
        let arguments = fields.nth(48 - 25).and_then(number).unwrap_or(0);
        let wait_status = fields
            .nth(52 - 49)
            .and_then(|last| number(last.trim_ascii_end()))
            .and_then(|status| i32::try_from(status).ok())
            .unwrap_or(0);
        Some(Self {
            pid,
            name,
            state,
            parent,
            is_kernel_thread: flags & PF_KTHREAD != 0,
            major_faults,
            cpu_ticks: user.checked_add(system)?,
            start: StartTicks(start),
            rss_pages,
            arguments,
            wait_status,
        })
    }
}

/// Flag of kernel threads (`include/linux/sched.h`).
const PF_KTHREAD: u64 = 0x0020_0000;

fn number(field: &[u8]) -> Option<u64> {
    if field.is_empty() {
        return None;
    }
    field.iter().try_fold(0u64, |n, &digit| {
        let digit = digit.checked_sub(b'0').filter(|&d| d < 10)?;
        n.checked_mul(10)?.checked_add(digit.into())
    })
}

/// Converts a process state letter as documented in proc(5).
fn run_state(letter: u8) -> RunState {
    match letter {
        b'R' => RunState::Running,
        // `I` is an idle kernel thread.
        b'S' | b'I' => RunState::Sleeping,
        b'D' => RunState::Blocked,
        b'T' | b't' => RunState::Stopped,
        b'Z' | b'X' => RunState::Zombie,
        _ => RunState::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const LINE: &[u8] = b"418 (python (x) ) R) D 400 418 400 34816 418 4194304 9 0 1 0 250 50 0 0 20 0 33 0 \
        98765 1000000 2560 18446744073709551615 1 1 0 0 0 0 0 0 0 0 0 0 17 3 0 0 0 0 0 0 0 0 7000 7096 7096 7200 1792\n";

    #[test]
    fn a_name_with_spaces_and_parentheses_does_not_shift_the_fields() {
        let expected = Stat {
            pid: Pid(418),
            name: b"python (x) ) R",
            state: RunState::Blocked,
            parent: Pid(400),
            is_kernel_thread: false,
            major_faults: 1,
            cpu_ticks: 300,
            start: StartTicks(98765),
            rss_pages: 2560,
            arguments: 7_000,
            wait_status: 1_792,
        };
        assert_eq!(Stat::parse(LINE), Some(expected));
    }

    proptest! {
        #[test]
        fn never_panics_on_arbitrary_bytes(line: Vec<u8>) {
            let _ = Stat::parse(&line);
        }

        #[test]
        fn rejects_a_cut_line_or_reads_the_same_values(end in 0..LINE.len()) {
            if let Some(stat) = Stat::parse(&LINE[..end]) {
                prop_assert_eq!(stat.start, StartTicks(98765));
            }
        }
    }
}
