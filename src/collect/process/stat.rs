//! `/proc/PID/stat`, the one file read of every process on every tick.
//!
//! The file is opened once and read again through the same descriptor: it stays bound to that process, so a
//! recycled PID can never be taken for it, and a read after its end says ESRCH. Parsed by hand because the procfs
//! crate's `Stat` parses 52 fields and costs three times as much.
//!
//! `418 (python (x) 1) S 400 418 …`: the name may hold spaces, parentheses and newlines, so it ends at the *last*
//! closing parenthesis; nothing behind it can hold one.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use crate::model::process::RunState;
use crate::model::units::{Pid, StartTicks};

/// 52 numbers of at most 20 digits and a name of at most 64 bytes fit twice.
const STAT_BYTES: usize = 2048;

/// What one line says, borrowed from the buffer it was read into.
#[derive(Debug, PartialEq)]
pub struct Stat<'a> {
    pub name: &'a [u8],
    pub state: RunState,
    pub parent: Pid,
    /// User and system time in clock ticks.
    pub cpu_ticks: u64,
    pub start: StartTicks,
    pub rss_pages: u64,
    /// Where its arguments lie: another place means an exec, since the kernel shuffles addresses at each. 0 when this
    /// user may not know.
    pub arguments: u64,
    /// The wait status of a zombie; 0 also of everything else, and when this user may not know.
    pub wait_status: i32,
}

/// An open stat file.
pub struct StatFile(File);

pub struct StatBuffer([u8; STAT_BYTES]);

impl StatBuffer {
    pub fn new() -> Self {
        Self([0; STAT_BYTES])
    }
}

impl StatFile {
    pub fn open(path: &Path) -> io::Result<Self> {
        File::open(path).map(Self)
    }

    /// ESRCH once the process was collected by its parent.
    pub fn read<'a>(&self, buffer: &'a mut StatBuffer) -> io::Result<Stat<'a>> {
        let n = self.0.read_at(&mut buffer.0, 0)?;
        parse(&buffer.0[..n]).ok_or_else(|| io::Error::from(io::ErrorKind::InvalidData))
    }
}

fn parse(line: &[u8]) -> Option<Stat<'_>> {
    let open = line.iter().position(|&b| b == b'(')?;
    let close = line.iter().rposition(|&b| b == b')')?;
    let name = line.get(open + 1..close)?;
    // Field 3, the state, comes first here.
    let mut fields = line.get(close + 2..)?.split(|&b| b == b' ');
    let state = run_state(*fields.next()?.first()?);
    let parent = Pid(u32::try_from(number(fields.next()?)?).ok()?);
    let user = number(fields.nth(14 - 5)?)?;
    let system = number(fields.next()?)?;
    let start = number(fields.nth(22 - 16)?)?;
    // A kernel thread may show a negative size.
    let rss_pages = number(fields.nth(24 - 23)?).unwrap_or(0);
    let arguments = fields.nth(48 - 25).and_then(number).unwrap_or(0);
    let wait_status = fields
        .nth(52 - 49)
        .and_then(|last| number(last.trim_ascii_end()))
        .and_then(|status| i32::try_from(status).ok())
        .unwrap_or(0);
    Some(Stat {
        name,
        state,
        parent,
        cpu_ticks: user.checked_add(system)?,
        start: StartTicks(start),
        rss_pages,
        arguments,
        wait_status,
    })
}

fn number(field: &[u8]) -> Option<u64> {
    if field.is_empty() {
        return None;
    }
    field.iter().try_fold(0u64, |n, &digit| {
        let digit = digit.checked_sub(b'0').filter(|&d| d < 10)?;
        n.checked_mul(10)?.checked_add(digit.into())
    })
}

/// The letters of proc(5).
fn run_state(letter: u8) -> RunState {
    match letter {
        b'R' => RunState::Running,
        // I is an idle kernel thread.
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
            name: b"python (x) ) R",
            state: RunState::Blocked,
            parent: Pid(400),
            cpu_ticks: 300,
            start: StartTicks(98765),
            rss_pages: 2560,
            arguments: 7_000,
            wait_status: 1_792,
        };
        assert_eq!(parse(LINE), Some(expected));
    }

    #[test]
    fn this_process_reads_as_the_procfs_crate_reads_it() {
        let file = StatFile::open(Path::new("/proc/self/stat")).expect("open");
        let mut buffer = StatBuffer::new();
        let ours = file.read(&mut buffer).expect("read");
        let theirs = procfs::process::Process::myself()
            .and_then(|p| p.stat())
            .expect("procfs");
        assert_eq!(ours.name, theirs.comm.as_bytes());
        assert_eq!(ours.start.0, theirs.starttime);
        assert_eq!(i64::from(ours.parent.0), i64::from(theirs.ppid));
        assert_eq!(Some(ours.arguments), theirs.arg_start);
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(line: Vec<u8>) {
            let _ = parse(&line);
        }

        #[test]
        fn a_cut_line_is_refused_or_read_the_same(end in 0..LINE.len()) {
            if let Some(stat) = parse(&LINE[..end]) {
                prop_assert_eq!(stat.start, StartTicks(98765));
            }
        }
    }
}
