//! One process that is being watched: its stat file, and what was last read of it.

use std::io;
use std::path::Path;

use nix::errno::Errno;

use super::cpu::CpuMeter;
use super::stat::{Stat, StatBuffer, StatFile};
use super::{Context, facts, run_command};
use crate::model::process::{Parent, Process, ProcessKey, RunState};
use crate::model::reading::Reading;
use crate::model::text::visible;
use crate::model::units::{Bytes, Millis, Mono, Pid, UnixMillis};
use crate::open_files::{LongLivedFile, room_for};

/// A name has 15 bytes, of which each may become four characters.
const MAX_NAME_CHARS: usize = 64;
/// How long a command line, a user and a cgroup are taken for unchanged.
const FACTS_FOR_MS: u64 = 30_000;
/// Where no exec can be seen, a process this young may still be what forked it: `python` that becomes another `python`
/// keeps its name.
const YOUNG_MS: u64 = 10_000;
const FACTS_FOR_YOUNG_MS: u64 = 1_000;
/// The readings of many processes are spread over this time, so that no tick has to do them all.
const FACTS_SPREAD_MS: u64 = 8_000;

pub struct TrackedProcess {
    /// Opened for each reading where the limit on open files leaves no room to keep it.
    file: Option<StatFile>,
    /// The kernel's bytes: another name means an exec.
    name: Vec<u8>,
    /// As in [`Stat`]: another place means an exec too.
    arguments: u64,
    uid: Option<u32>,
    cpu: CpuMeter,
    facts_due: Mono,
    unlisted_since: Option<Mono>,
    end_told: bool,
    is_readable: bool,
    process: Process,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refreshed {
    Alive,
    Ended,
}

impl TrackedProcess {
    pub fn open(pid: Pid, now: Mono, reading: &mut Context) -> io::Result<Self> {
        let file = StatFile::open(&reading.dir(pid).join("stat"))?;
        let stat = file.read(&mut reading.buffer)?;
        let key = ProcessKey {
            pid,
            start: stat.start,
        };
        let mut process = Process {
            key,
            started: started(key, reading.boot, reading.ticks_per_second),
            ..Process::default()
        };
        apply(&mut process, &stat, reading.page_size);
        adopt(&mut process, stat.parent);
        let mut cpu = CpuMeter::new(now, stat.cpu_ticks);
        process.cpu = cpu.measure(now, stat.cpu_ticks, reading.ticks_per_second);
        let (name, arguments) = (stat.name.to_vec(), stat.arguments);
        // Now, while all of them live.
        process.run = run_command::command_of(&reading.proc_root, key, stat.parent);
        let mut uid = None;
        facts::read_into(&mut process, &mut uid, reading);
        // Alive still, so the facts were its own and not those of a later owner of the PID.
        file.read(&mut reading.buffer)?;
        let has_room = room_for(LongLivedFile::Stat, &file).is_ok();
        Ok(Self {
            file: has_room.then_some(file),
            name,
            arguments,
            uid,
            cpu,
            facts_due: next_facts(now, &process, arguments, reading.ticks_per_second),
            unlisted_since: None,
            end_told: false,
            is_readable: true,
            process,
        })
    }

    pub fn process(&self) -> &Process {
        &self.process
    }

    /// False once the descriptor tells nothing any more.
    pub fn is_readable(&self) -> bool {
        self.is_readable
    }

    pub fn unlisted_for(&self, now: Mono) -> Millis {
        self.unlisted_since
            .map_or(Millis(0), |since| now.since(since))
    }

    pub fn refresh(&mut self, is_listed: bool, now: Mono, reading: &mut Context) -> Refreshed {
        if is_listed {
            self.unlisted_since = None;
        } else {
            self.unlisted_since.get_or_insert(now);
        }
        let file = self.file.as_ref();
        match read_stat(
            file,
            self.process.key,
            &reading.proc_root,
            &mut reading.buffer,
        ) {
            Ok(stat) => {
                apply(&mut self.process, &stat, reading.page_size);
                self.process.cpu = self
                    .cpu
                    .measure(now, stat.cpu_ticks, reading.ticks_per_second);
                if adopt(&mut self.process, stat.parent) {
                    self.facts_due = now;
                }
                if self.name != stat.name || self.arguments != stat.arguments {
                    self.name = stat.name.to_vec();
                    self.arguments = stat.arguments;
                    self.facts_due = now;
                    self.uid = None;
                }
            }
            Err(error) => return self.refused(&error),
        }
        if is_listed && now >= self.facts_due {
            self.read_facts(now, reading);
        }
        // A zombie without a GPU has ended for everyone but its parent, which may never collect it.
        if !is_listed && self.process.state == RunState::Zombie {
            return Refreshed::Ended;
        }
        Refreshed::Alive
    }

    fn refused(&mut self, error: &io::Error) -> Refreshed {
        self.is_readable = false;
        if error.raw_os_error() == Some(Errno::ESRCH as i32) {
            Refreshed::Ended
        } else {
            Refreshed::Alive
        }
    }

    /// The process as it was last seen, the first time it is asked for.
    pub fn tell_end(&mut self) -> Option<(ProcessKey, Process)> {
        if std::mem::replace(&mut self.end_told, true) {
            return None;
        }
        Some((self.process.key, self.process.clone()))
    }

    fn read_facts(&mut self, now: Mono, reading: &mut Context) {
        // A zombie has no command line any more; the one it had is what tells it apart.
        if self.process.state == RunState::Zombie {
            return;
        }
        let mut read = self.process.clone();
        facts::read_into(&mut read, &mut self.uid, reading);
        // When it is looked at again is judged by what it has itself.
        self.facts_due = next_facts(now, &read, self.arguments, reading.ticks_per_second);
        // One that is being taken apart has none either, a moment before it is a zombie; and in the midst of an exec there is
        // none yet.
        if read.command.value().is_none() && self.process.command.value().is_some() {
            read.command = self.process.command.clone();
        }
        let file = self.file.as_ref();
        if read_stat(file, read.key, &reading.proc_root, &mut reading.buffer).is_ok() {
            self.process = read;
        }
    }
}

/// Reads the file that is kept open, or opens the one of this process. ESRCH once the process has exited.
fn read_stat<'a>(
    kept: Option<&StatFile>,
    key: ProcessKey,
    proc_root: &Path,
    buffer: &'a mut StatBuffer,
) -> io::Result<Stat<'a>> {
    if let Some(file) = kept {
        return file.read(buffer);
    }
    let exited = || io::Error::from(Errno::ESRCH);
    let path = proc_root.join(key.pid.to_string()).join("stat");
    let file = StatFile::open(&path).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => exited(),
        _ => error,
    })?;
    let stat = file.read(buffer)?;
    // Another process may have the PID now.
    if stat.start == key.start {
        Ok(stat)
    } else {
        Err(exited())
    }
}

fn apply(process: &mut Process, stat: &Stat<'_>, page_size: u64) {
    if process.name.as_bytes() != stat.name {
        process.name = visible(stat.name, MAX_NAME_CHARS);
    }
    process.state = stat.state;
    process.rss = Reading::Value(Bytes(stat.rss_pages.saturating_mul(page_size)));
}

/// True when its parent is another one now, whose name is not known yet.
fn adopt(process: &mut Process, parent: Pid) -> bool {
    let known = process.parent.as_ref().map(|parent| parent.pid);
    // The kernel's own have none.
    if known == Some(parent) || parent == Pid(0) {
        return false;
    }
    process.parent = Some(Parent {
        pid: parent,
        name: String::new(),
    });
    true
}

fn since_boot(key: ProcessKey, ticks_per_second: u64) -> Mono {
    Mono(key.start.0.saturating_mul(1000) / ticks_per_second.max(1))
}

fn started(key: ProcessKey, boot: UnixMillis, ticks_per_second: u64) -> UnixMillis {
    UnixMillis(
        boot.0
            .saturating_add_unsigned(since_boot(key, ticks_per_second).0),
    )
}

/// When the slow facts are read again.
fn next_facts(now: Mono, process: &Process, arguments: u64, ticks_per_second: u64) -> Mono {
    // The kernel names a process a moment before it has laid out the new command line.
    if process.command.value().is_none() {
        return now;
    }
    let age = now.since(since_boot(process.key, ticks_per_second)).0;
    if age < YOUNG_MS && arguments == 0 {
        return Mono(now.0 + FACTS_FOR_YOUNG_MS);
    }
    let offset = u64::from(process.key.pid.0).wrapping_mul(997) % FACTS_SPREAD_MS;
    Mono(now.0 + FACTS_FOR_MS - offset)
}
