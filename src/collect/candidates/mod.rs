//! Finds programs that are about to use a GPU: new processes that load a library for CUDA.
//!
//! The driver lists a process only once it has a CUDA context, and gputop reads that list once a second. A program that
//! fails in its first second on the GPU, such as at a wrong label in the first batch, is therefore often not listed in
//! time. However, importing PyTorch takes a second or more and loads CUDA's libraries first. A process that has them
//! mapped is a candidate: gputop follows its output and judges its exit, but shows it in no table.
//!
//! One thread looks at new processes four times a second. It reads one small file of each, and the list of mappings only
//! after it has grown enough to contain a library of CUDA. The thread uses at most 0.1 % of a core over time. If that is
//! not enough, it looks at the newest processes.
//!
//! A process chooses the files behind its arguments and its program, such as files of a FUSE server that never answers.
//! Each read of its mappings and arguments is therefore on a thread of its own. After a second, the search goes on
//! without its answer.

mod cpu_budget;
mod new_pids;

use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender, TryRecvError};
use std::time::Duration;

use gputop_model::{Millis, Mono, Pid, PidNamespace, Process, ProcessKey};
use gputop_peek::clock::now_mono;
use gputop_peek::process::stat::{StatBuffer, StatFile, with_ancestors};
use gputop_peek::process::statm::mapped_pages;
use memchr::memmem;
use rustix::process::{PidfdFlags, pidfd_open};

use self::cpu_budget::{CpuBudget, cpu_time_of_thread};
use self::new_pids::NewPids;
use super::process::ProcessTable;
use super::process::container::Files;
use super::process::own_program::is_gputop;

/// Environment variable that turns this off with the value `0`.
pub const CANDIDATES_VARIABLE: &str = "GPUTOP_CANDIDATES";

const INTERVAL: Duration = Duration::from_millis(250);
/// Age at which gputop stops looking at a process that has not loaded CUDA.
const MAX_AGE: Millis = Millis(10 * 60 * 1_000);
/// Maximum number of processes to look at.
const MAX_PROCESSES: usize = 1_024;
/// Growth of a process's read-only memory after which its mappings are searched. The driver's library alone takes more:
/// 28 MiB in version 535, and 96 MiB in version 580.
const MIN_GROWTH: u64 = 16 << 20;
/// Maximum size of the mappings to search. A process that has imported PyTorch has 150 KiB.
const MAX_MAPS_BYTES: u64 = 4 << 20;
/// Maximum time for reading a process that has grown enough.
const READ_TIMEOUT: Duration = Duration::from_secs(1);
/// Maximum number of hung threads. While this many exist, no other process is read.
const MAX_HUNG: usize = 8;
/// Maximum number of hung threads that read processes of one user, so that no user can stop the search for the others.
const MAX_HUNG_PER_USER: usize = 2;

/// Beginnings of the file names of CUDA's driver and runtime, and of the libraries of PyTorch, JAX and TensorFlow that
/// load them. The last one is a device that every program with a CUDA context has mapped.
const LIBRARIES: &[&str] = &[
    "/libcuda.so",
    "/libcudart",
    "/libtorch_cuda",
    "/libjax_common.so",
    "/xla_extension.so",
    "/xla_cuda_plugin.so",
    "/libtensorflow_cc.so",
    "/libtensorflow_framework.so",
    "/_pywrap_tensorflow",
    "/dev/nvidia-uvm",
];

/// A new process that has loaded a library for CUDA.
#[derive(Debug)]
pub struct Candidate {
    pub process: Process,
    pub ancestors: Vec<ProcessKey>,
}

/// Handle to the thread that looks for candidates. Dropping it stops the thread.
#[derive(Debug)]
pub struct CandidateFinder {
    _stop: Sender<()>,
}

impl CandidateFinder {
    /// Starts the thread, which calls `report` once for each candidate. Processes that are already running are not
    /// looked at.
    pub fn start(
        proc_root: &Path,
        files: Files,
        report: impl Fn(Candidate) + Send + 'static,
    ) -> io::Result<Self> {
        let (stop, stopped) = mpsc::channel();
        let proc_root = proc_root.to_owned();
        // A process that starts from now on is new, even if the thread starts later.
        let new_pids = NewPids::new(&proc_root);
        let look = move || {
            let mut finder = Finder::new(proc_root, files, new_pids);
            while stopped.recv_timeout(INTERVAL) == Err(RecvTimeoutError::Timeout) {
                finder.look(&report);
            }
        };
        std::thread::Builder::new().name("candidates".into()).spawn(look)?;
        Ok(Self { _stop: stop })
    }
}

struct Finder {
    proc_root: PathBuf,
    new_pids: NewPids,
    /// Processes that have not loaded CUDA yet, oldest first.
    processes: Vec<NewProcess>,
    files: Files,
    budget: CpuBudget,
    page_size: u64,
    hung: Vec<HungReader>,
}

#[derive(Clone)]
struct NewProcess {
    pid: Pid,
    found: Mono,
    /// Size of the read-only memory when the mappings were last searched.
    searched_size: u64,
}

/// A thread that did not read a process in time.
struct HungReader {
    /// Owner of the process.
    user: u32,
    process: NewProcess,
    /// Arrives late if the host is only slow.
    answer: Receiver<ReadResult>,
}

/// The result of a read, and the CPU time that it took.
type ReadResult = (io::Result<ProcessFinding>, Duration);

enum ProcessFinding {
    /// The process has not loaded CUDA.
    Waiting,
    Candidate(Box<Candidate>),
    /// The process has exited, is not readable, or is gputop itself.
    Over,
}

impl Finder {
    fn new(proc_root: PathBuf, files: Files, new_pids: NewPids) -> Self {
        Self {
            new_pids,
            processes: Vec::new(),
            files,
            budget: CpuBudget::new(),
            page_size: procfs::page_size(),
            hung: Vec::new(),
            proc_root,
        }
    }

    fn look(&mut self, report: &impl Fn(Candidate)) {
        self.add_new_processes();
        self.take_late_answers(report);
        let mut older = std::mem::take(&mut self.processes);
        let mut waiting = Vec::with_capacity(older.len());
        while let Some(mut process) = older.pop() {
            if !self.budget.has_time() {
                older.push(process);
                break;
            }
            match self.finding(&mut process) {
                Ok(ProcessFinding::Waiting) => waiting.push(process),
                Ok(ProcessFinding::Candidate(candidate)) => report(*candidate),
                Ok(ProcessFinding::Over) | Err(_) => {}
            }
        }
        older.extend(waiting.into_iter().rev());
        self.processes = older;
    }

    fn take_late_answers(&mut self, report: &impl Fn(Candidate)) {
        for reader in std::mem::take(&mut self.hung) {
            let finding = match reader.answer.try_recv() {
                Ok((finding, used)) => {
                    self.budget.charge(Duration::ZERO, used);
                    finding.ok()
                }
                Err(TryRecvError::Empty) => {
                    self.hung.push(reader);
                    continue;
                }
                Err(TryRecvError::Disconnected) => None,
            };
            match finding {
                Some(ProcessFinding::Candidate(candidate)) => report(*candidate),
                Some(ProcessFinding::Waiting) => self.processes.push(reader.process),
                Some(ProcessFinding::Over) | None => {}
            }
        }
    }

    fn add_new_processes(&mut self) {
        let now = now_mono();
        self.processes.retain(|process| now.since(process.found) <= MAX_AGE);
        for pid in self.new_pids.take() {
            // PIDs of threads and of exited processes are the most frequent, and this is the fastest way to skip them.
            let number = i32::try_from(pid.0).ok().and_then(rustix::process::Pid::from_raw);
            if number.is_some_and(|number| pidfd_open(number, PidfdFlags::empty()).is_ok()) {
                self.processes.push(NewProcess { pid, found: now, searched_size: 0 });
            }
        }
        let surplus = self.processes.len().saturating_sub(MAX_PROCESSES);
        self.processes.drain(..surplus);
    }

    fn finding(&mut self, process: &mut NewProcess) -> io::Result<ProcessFinding> {
        let pages = mapped_pages(&self.proc_root, process.pid)?;
        if pages.total == 0 {
            return Ok(ProcessFinding::Over);
        }
        let size = pages.read_only.saturating_mul(self.page_size);
        // A smaller size means that an exec happened.
        if size < process.searched_size {
            process.searched_size = 0;
        }
        if size < process.searched_size.saturating_add(MIN_GROWTH) {
            return Ok(ProcessFinding::Waiting);
        }
        self.read(process, size)
    }

    /// Reads a process on a thread of its own. If that takes too long, the answer is awaited in the background.
    fn read(&mut self, process: &mut NewProcess, size: u64) -> io::Result<ProcessFinding> {
        let pid = process.pid;
        let user = fs::metadata(self.proc_root.join(pid.to_string()))?.uid();
        if !self.may_read(user) {
            return Ok(ProcessFinding::Waiting);
        }
        let (sender, answer) = mpsc::channel();
        let (proc_root, files) = (self.proc_root.clone(), self.files.clone());
        let thread = std::thread::Builder::new().name("candidate".into()).spawn(move || {
            let _ = sender.send((read(&proc_root, files, pid), cpu_time_of_thread()));
        });
        // Another attempt follows if the limit on threads is reached.
        if thread.is_err() {
            return Ok(ProcessFinding::Waiting);
        }
        process.searched_size = size;
        let Ok((finding, used)) = answer.recv_timeout(READ_TIMEOUT) else {
            self.hung.push(HungReader { user, process: process.clone(), answer });
            if self.hung.len() == MAX_HUNG {
                tracing::warn!(
                    "new CUDA programs are not found while {MAX_HUNG} processes do not answer"
                );
            }
            return Ok(ProcessFinding::Over);
        };
        self.budget.charge(Duration::ZERO, used);
        finding
    }

    /// Returns true if another thread may hang while it reads a process of this user.
    fn may_read(&self, user: u32) -> bool {
        let of_user = self.hung.iter().filter(|reader| reader.user == user).count();
        self.hung.len() < MAX_HUNG && of_user < MAX_HUNG_PER_USER
    }
}

/// Reads whether a process has loaded CUDA, and if so, describes it.
fn read(proc_root: &Path, files: Files, pid: Pid) -> io::Result<ProcessFinding> {
    let dir = proc_root.join(pid.to_string());
    if !is_cuda_program(proc_root, pid)? {
        return Ok(ProcessFinding::Waiting);
    }
    if is_gputop(&dir) {
        return Ok(ProcessFinding::Over);
    }
    let now = now_mono();
    // The namespace matters only for the PIDs of the driver.
    let mut table = ProcessTable::new(proc_root, files, PidNamespace::Host);
    let process = table.describe(pid, now)?;
    // If the kernel has started again at the lowest PID, the new PIDs contain those of older processes.
    let started = process.key.start.0.saturating_mul(1_000) / procfs::ticks_per_second();
    if now.since(Mono(started)) > MAX_AGE {
        return Ok(ProcessFinding::Over);
    }
    let ancestors = with_ancestors(proc_root, pid).skip(1).map(|(key, _)| key).collect();
    Ok(ProcessFinding::Candidate(Box::new(Candidate { process, ancestors })))
}

/// Returns true if a process has loaded CUDA itself, and is not a forked copy of one that has. Requires permission to read
/// the process.
pub fn is_cuda_program(proc_root: &Path, pid: Pid) -> io::Result<bool> {
    Ok(has_cuda(&proc_root.join(pid.to_string()))? && !is_forked_copy(proc_root, pid)?)
}

/// Returns true if a library of [`LIBRARIES`] is mapped. Requires permission to read the process.
fn has_cuda(dir: &Path) -> io::Result<bool> {
    let mut maps = Vec::new();
    File::open(dir.join("maps"))?.take(MAX_MAPS_BYTES).read_to_end(&mut maps)?;
    Ok(LIBRARIES.iter().any(|library| memmem::find(&maps, library.as_bytes()).is_some()))
}

/// Returns true if a process has the arguments of its parent, and therefore has not called exec. A forked child has its
/// parent's libraries, such as a worker that loads data.
fn is_forked_copy(proc_root: &Path, pid: Pid) -> io::Result<bool> {
    let mut buffer = StatBuffer::default();
    let own = StatFile::of(proc_root, pid)?.read(&mut buffer)?;
    let (arguments, parent) = (own.arguments, own.parent);
    let parent = StatFile::of(proc_root, parent);
    let parent = parent.and_then(|file| Ok(file.read(&mut buffer)?.arguments));
    Ok(arguments != 0 && parent.is_ok_and(|parent| parent == arguments))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hung_processes_of_some_users_do_not_stop_the_search_for_others() {
        let proc_root = Path::new("/proc");
        let files = Files { root: "/".into(), home: None };
        let mut finder = Finder::new(proc_root.into(), files, NewPids::new(proc_root));
        let hang = |finder: &mut Finder, user| {
            let (sender, answer) = mpsc::channel();
            let process = NewProcess { pid: Pid(1), found: Mono::default(), searched_size: 0 };
            finder.hung.push(HungReader { user, process, answer });
            sender
        };
        let mut answers = Vec::new();
        for user in 0..4 {
            for _ in 0..MAX_HUNG_PER_USER {
                assert!(finder.may_read(user));
                answers.push(hang(&mut finder, user));
            }
            assert!(!finder.may_read(user));
        }
        assert!(!finder.may_read(5));
        answers.pop();
        finder.take_late_answers(&|_| {});
        assert!(finder.may_read(5));
    }
}
