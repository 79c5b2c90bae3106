//! A watched process: its open stat file and its last readings.

use std::io;
use std::path::Path;

use gputop_model::process::Parent;
use gputop_model::text::visible;
use gputop_model::{Bytes, Millis, Mono, Pid, Process, ProcessKey, Reading, RunState, UnixMillis};
use gputop_peek::process::stat::{Stat, StatBuffer, StatFile};
use nix::errno::Errno;

use super::cpu::CpuMeter;
use super::{facts, run_command};
use crate::collect::process::context::Context;
use crate::open_files::{LongLivedFile, room_for};

/// Maximum length of a process name: 15 bytes, each escaped as up to 4 characters.
const MAX_NAME_CHARS: usize = 64;
/// Interval for rereading a process's command line, user and cgroup.
const FACTS_INTERVAL_MS: u64 = 30_000;
/// Age up to which the facts of a process are read more often if gputop cannot detect the process's execs. A young
/// `python` process may still exec another `python` with the same name.
const YOUNG_MS: u64 = 10_000;
const YOUNG_FACTS_INTERVAL_MS: u64 = 1_000;
/// Time range over which the reads of process facts are spread by PID, so that no tick reads the facts of all
/// processes.
const FACTS_SPREAD_MS: u64 = 8_000;

pub struct TrackedProcess {
    /// Open stat file. `None` if the open-file limit is too low to keep the file open. In that case, the file is opened
    /// for each read.
    file: Option<StatFile>,
    /// Process name reported by the kernel. A changed name means that an exec happened.
    name: Vec<u8>,
    /// Address of the process's arguments, as in [`Stat`]. A changed address also means that an exec happened.
    arguments: u64,
    uid: Option<u32>,
    cpu: CpuMeter,
    facts_due: Mono,
    unlisted_since: Option<Mono>,
    is_exit_reported: bool,
    is_readable: bool,
    process: Process,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refreshed {
    Alive,
    Exited,
}

impl TrackedProcess {
    pub fn open(pid: Pid, now: Mono, reading: &mut Context) -> io::Result<Self> {
        let file = StatFile::of(&reading.proc_root, pid)?;
        let stat = file.read(&mut reading.buffer)?;
        if stat.is_kernel_thread {
            // The driver means a process of another PID namespace, as in WSL.
            return Err(Errno::ENOENT.into());
        }
        let key = ProcessKey { pid, start: stat.start };
        let mut process = Process {
            key,
            started: start_time(key, reading.boot, reading.ticks_per_second),
            ..Process::default()
        };
        apply(&mut process, &stat, reading.page_size);
        update_parent(&mut process, stat.parent);
        let mut cpu = CpuMeter::new(now, stat.cpu_ticks);
        process.cpu = cpu.measure(now, stat.cpu_ticks, reading.ticks_per_second);
        let (name, arguments) = (stat.name.to_vec(), stat.arguments);
        // Search for the run command now, while all ancestors are still running.
        process.run = run_command::command_of(&reading.proc_root, key, stat.parent);
        let mut uid = None;
        facts::read_into(&mut process, &mut uid, reading);
        // Confirm that the facts belong to this process: if it still exists, its PID was not reused.
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
            is_exit_reported: false,
            is_readable: true,
            process,
        })
    }

    pub fn process(&self) -> &Process {
        &self.process
    }

    /// Returns false once a read of the stat file has failed.
    pub fn is_readable(&self) -> bool {
        self.is_readable
    }

    pub fn unlisted_for(&self, now: Mono) -> Millis {
        self.unlisted_since.map_or(Millis(0), |since| now.since(since))
    }

    pub fn refresh(&mut self, is_listed: bool, now: Mono, reading: &mut Context) -> Refreshed {
        if is_listed {
            self.unlisted_since = None;
        } else {
            self.unlisted_since.get_or_insert(now);
        }
        let file = self.file.as_ref();
        match read_stat(file, self.process.key, &reading.proc_root, &mut reading.buffer) {
            Ok(stat) => {
                apply(&mut self.process, &stat, reading.page_size);
                self.process.cpu = self.cpu.measure(now, stat.cpu_ticks, reading.ticks_per_second);
                if let (Some(uid), Reading::Value(user)) = (self.uid, &mut self.process.user) {
                    reading.users.update(uid, user);
                }
                if update_parent(&mut self.process, stat.parent) {
                    self.facts_due = now;
                }
                if self.name != stat.name || self.arguments != stat.arguments {
                    self.name = stat.name.to_vec();
                    self.arguments = stat.arguments;
                    self.facts_due = now;
                    self.uid = None;
                }
            }
            Err(error) => return self.handle_read_error(&error),
        }
        if is_listed && now >= self.facts_due {
            self.read_facts(now, reading);
        }
        // Treat a zombie without a GPU as exited, because its parent may never reap it.
        if !is_listed && self.process.state == RunState::Zombie {
            return Refreshed::Exited;
        }
        Refreshed::Alive
    }

    fn handle_read_error(&mut self, error: &io::Error) -> Refreshed {
        self.is_readable = false;
        if error.raw_os_error() == Some(Errno::ESRCH as i32) {
            Refreshed::Exited
        } else {
            Refreshed::Alive
        }
    }

    /// Returns the last readings of an exited process on the first call, and `None` afterwards.
    pub fn take_exit(&mut self) -> Option<(ProcessKey, Process)> {
        if std::mem::replace(&mut self.is_exit_reported, true) {
            return None;
        }
        Some((self.process.key, self.process.clone()))
    }

    fn read_facts(&mut self, now: Mono, reading: &mut Context) {
        // Keep a zombie's last command line, which still identifies it, because the kernel no longer reports one.
        if self.process.state == RunState::Zombie {
            return;
        }
        let mut read = self.process.clone();
        facts::read_into(&mut read, &mut self.uid, reading);
        // Compute the next read time before a missing command line is replaced by the previous one.
        self.facts_due = next_facts(now, &read, self.arguments, reading.ticks_per_second);
        // Keep the previous command line if the new one is missing, as it is during an exec and just before the
        // process becomes a zombie.
        if read.command.value().is_none() && self.process.command.value().is_some() {
            read.command = self.process.command.clone();
        }
        let file = self.file.as_ref();
        if read_stat(file, read.key, &reading.proc_root, &mut reading.buffer).is_ok() {
            self.process = read;
        }
    }
}

/// Reads a process's stat file. Opens the file first if `open_file` is `None`. Returns ESRCH if the process has exited.
fn read_stat<'a>(
    open_file: Option<&StatFile>,
    key: ProcessKey,
    proc_root: &Path,
    buffer: &'a mut StatBuffer,
) -> io::Result<Stat<'a>> {
    if let Some(file) = open_file {
        return file.read(buffer);
    }
    let exited = || io::Error::from(Errno::ESRCH);
    let path = proc_root.join(key.pid.to_string()).join("stat");
    let file = StatFile::open(&path).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => exited(),
        _ => error,
    })?;
    let stat = file.read(buffer)?;
    // Compare the start time, because the PID may now belong to another process.
    if stat.start == key.start { Ok(stat) } else { Err(exited()) }
}

fn apply(process: &mut Process, stat: &Stat<'_>, page_size: u64) {
    if process.name.as_bytes() != stat.name {
        process.name = visible(stat.name, MAX_NAME_CHARS);
    }
    process.state = stat.state;
    process.rss = Reading::Value(Bytes(stat.rss_pages.saturating_mul(page_size)));
}

/// Updates the parent's PID. Returns true if the parent changed and its name must be read.
fn update_parent(process: &mut Process, parent: Pid) -> bool {
    let known = process.parent.as_ref().map(|parent| parent.pid);
    // Kernel threads have the parent PID 0.
    if known == Some(parent) || parent == Pid(0) {
        return false;
    }
    process.parent = Some(Parent { pid: parent, name: String::new() });
    true
}

fn since_boot(key: ProcessKey, ticks_per_second: u64) -> Mono {
    Mono(key.start.0.saturating_mul(1000) / ticks_per_second.max(1))
}

fn start_time(key: ProcessKey, boot: UnixMillis, ticks_per_second: u64) -> UnixMillis {
    UnixMillis(boot.0.saturating_add_unsigned(since_boot(key, ticks_per_second).0))
}

/// Returns the time at which to read a process's rarely changing attributes again.
fn next_facts(now: Mono, process: &Process, arguments: u64, ticks_per_second: u64) -> Mono {
    // Reread a missing command line immediately: during an exec, the kernel sets the new name shortly before the new
    // command line.
    if process.command.value().is_none() {
        return now;
    }
    let age = now.since(since_boot(process.key, ticks_per_second)).0;
    if age < YOUNG_MS && arguments == 0 {
        return Mono(now.0 + YOUNG_FACTS_INTERVAL_MS);
    }
    let offset = u64::from(process.key.pid.0).wrapping_mul(997) % FACTS_SPREAD_MS;
    Mono(now.0 + FACTS_INTERVAL_MS - offset)
}
