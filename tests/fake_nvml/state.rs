//! The current scenario, and the sessions opened by `nvmlInit`.
//!
//! Calls check the file for changes, at most once every few milliseconds. There is no thread for this, because the
//! library may be unloaded at any time.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Mutex, PoisonError, RwLock};
use std::time::{Duration, Instant};

use crate::scenario::{Code, Scenario};

const LOOK_AGAIN: Duration = Duration::from_millis(3);

static STATE: LazyLock<State> = LazyLock::new(State::open);

struct State {
    started: Instant,
    file: Option<PathBuf>,
    scenario: RwLock<Arc<Scenario>>,
    /// Stamp of the file when it was last read completely.
    seen: Mutex<Option<Stamp>>,
    /// Microseconds after `started`.
    looked: AtomicU64,
    sessions: AtomicU32,
    /// The driver's generation when the first session began.
    generation: AtomicU32,
    /// When each GPU was first called since the session began.
    woken: Mutex<BTreeMap<usize, Instant>>,
}

/// Identifies a version of the file: an atomic rename changes the inode.
#[derive(PartialEq, Eq, Clone, Copy)]
struct Stamp {
    inode: u64,
    size: u64,
    modified: (i64, i64),
}

impl Stamp {
    fn of(file: &Path) -> Option<Self> {
        let meta = fs::metadata(file).ok()?;
        Some(Self {
            inode: meta.ino(),
            size: meta.size(),
            modified: (meta.mtime(), meta.mtime_nsec()),
        })
    }
}

impl State {
    fn open() -> Self {
        let file = named_or_beside("FAKE_NVML_SCENARIO", "scenario.toml");
        let seen = file.as_deref().and_then(Stamp::of);
        let scenario = file
            .as_deref()
            .map_or_else(|| Ok(Scenario::default()), read)
            .unwrap_or_else(|why| complain(file.as_deref(), &why));
        Self {
            started: Instant::now(),
            file,
            scenario: RwLock::new(Arc::new(scenario)),
            seen: Mutex::new(seen),
            looked: AtomicU64::new(0),
            sessions: AtomicU32::new(0),
            generation: AtomicU32::new(0),
            woken: Mutex::new(BTreeMap::new()),
        }
    }

    fn current(&self) -> Arc<Scenario> {
        self.scenario.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Reads the file again if it changed. If it is empty or does not parse, it is only half written, and the previous
    /// scenario remains in use.
    fn look(&self, file: &Path) {
        // If another thread is checking the file, continue with the current scenario.
        let Ok(mut seen) = self.seen.try_lock() else { return };
        let now = Stamp::of(file);
        if now.is_none_or(|now| now.size == 0) || now == *seen {
            return;
        }
        if let Ok(scenario) = read(file) {
            let scenario = Arc::new(scenario);
            *self.scenario.write().unwrap_or_else(PoisonError::into_inner) = scenario;
            *seen = now;
        }
    }

    fn is_due(&self) -> bool {
        let now = self.started.elapsed().as_micros() as u64;
        let last = self.looked.load(Ordering::Relaxed);
        now.saturating_sub(last) >= LOOK_AGAIN.as_micros() as u64
            && self.looked.compare_exchange(last, now, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }
}

fn read(file: &Path) -> Result<Scenario, String> {
    let text = fs::read_to_string(file).map_err(|e| e.to_string())?;
    Scenario::parse(&text)
}

/// Prints an error and makes `nvmlInit` fail, because a test whose first scenario cannot be read is broken.
#[allow(clippy::print_stderr)]
fn complain(file: Option<&Path>, why: &str) -> Scenario {
    let file = file.unwrap_or(Path::new("")).display();
    eprintln!("fake NVML: {file}: {why}");
    Scenario::unreadable()
}

/// Returns the file named by the variable, or else the file of this name next to the library, if it exists.
pub fn named_or_beside(variable: &str, name: &str) -> Option<PathBuf> {
    if let Some(path) = std::env::var_os(variable) {
        return Some(PathBuf::from(path));
    }
    let path = own_path()?.parent()?.join(name);
    path.exists().then_some(path)
}

/// Returns the path of this library: the mapped file that contains one of its functions.
fn own_path() -> Option<PathBuf> {
    let here = own_path as *const () as usize;
    let maps = fs::read_to_string("/proc/self/maps").ok()?;
    let line = maps.lines().find(|line| covers(line, here))?;
    line.find('/').map(|at| PathBuf::from(&line[at..]))
}

fn covers(line: &str, address: usize) -> bool {
    let bounds = line.split_once(' ').and_then(|(range, _)| range.split_once('-'));
    let parse = |s: &str| usize::from_str_radix(s, 16).unwrap_or(0);
    bounds.is_some_and(|(from, to)| (parse(from)..parse(to)).contains(&address))
}

pub fn scenario() -> Arc<Scenario> {
    if let Some(file) = &STATE.file
        && STATE.is_due()
    {
        STATE.look(file);
    }
    STATE.current()
}

/// Returns the time since the library was first called.
pub fn elapsed() -> Duration {
    STATE.started.elapsed()
}

pub fn begin_session(scenario: &Scenario) -> Result<(), Code> {
    if scenario.driver.init != Code::OK {
        return Err(scenario.driver.init);
    }
    if STATE.sessions.fetch_add(1, Ordering::AcqRel) == 0 {
        STATE.generation.store(scenario.driver.generation, Ordering::Release);
        STATE.woken.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }
    Ok(())
}

/// Returns the time that `nvmlInit` needs now.
pub fn init_delay(scenario: &Scenario) -> Duration {
    let is_first = STATE.sessions.load(Ordering::Acquire) == 0;
    Duration::from_millis(if is_first { scenario.driver.wake_ms } else { 0 })
}

/// Returns the time until this GPU is awake.
pub fn wake_delay(scenario: &Scenario, gpu: usize) -> Duration {
    let needed = Duration::from_millis(scenario.gpu.get(gpu).map_or(0, |gpu| gpu.wake_ms));
    if needed.is_zero() {
        return needed;
    }
    let mut woken = STATE.woken.lock().unwrap_or_else(PoisonError::into_inner);
    needed.saturating_sub(woken.entry(gpu).or_insert_with(Instant::now).elapsed())
}

pub fn end_session() -> Result<(), Code> {
    STATE
        .sessions
        .fetch_update(Ordering::AcqRel, Ordering::Acquire, |n| n.checked_sub(1))
        .map_or(Err(Code::UNINITIALIZED), |_| Ok(()))
}

/// Returns an error if no call is allowed. After the driver was reloaded, calls fail until every session has ended and
/// a new one has begun. The codes are a guess, because a real driver was not observed in this state.
pub fn check_session(scenario: &Scenario, about_a_gpu: bool) -> Result<(), Code> {
    if STATE.sessions.load(Ordering::Acquire) == 0 {
        return Err(Code::UNINITIALIZED);
    }
    match STATE.generation.load(Ordering::Acquire) == scenario.driver.generation {
        true => Ok(()),
        false if about_a_gpu => Err(Code::GPU_IS_LOST),
        false => Err(Code::UNKNOWN),
    }
}
