//! Many remote hosts in one process: the output of `gputop agent` for a day of training, in a pipe for each host.
//!
//! A pipe is opened when a reader opens it. The next reader gets the output from the start, as from a new agent, or
//! from where the link was cut. The hosts send their frames one after the other, not all at once.
#![allow(dead_code)]

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufReader, Cursor, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use gputop::source::remote::serve::serve;
use gputop_model::protocol::Update;
use gputop_model::protocol::stream::{Feed, stream};
use nix::fcntl::OFlag;
use nix::sys::stat::Mode;

use super::training_day::{self, Day};

pub struct Hosts {
    folder: tempfile::TempDir,
    count: usize,
    says: Arc<WriterState>,
}

/// State shared with the writing thread: flags that control it, and its count of opened pipes.
#[derive(Default)]
struct WriterState {
    is_held: AtomicBool,
    is_over: AtomicBool,
    opened: AtomicUsize,
}

impl Hosts {
    /// Starts `count` hosts with eight GPUs and 64 processes each. Each host sends `frames` frames, one per `interval`,
    /// and then closes the pipe.
    pub fn start(count: usize, frames: usize, interval: Duration) -> Self {
        let mut day = Day::new();
        let frames = (0..frames).map(|_| Update::Frame(Arc::new(day.next().clone())));
        let first = [Update::Hello(Arc::new(training_day::hello()))];
        let links = vec![pieces(first.into_iter().chain(frames))];
        Self::tell(count, vec![links], true, interval)
    }

    /// Starts `count` hosts that send the given links one after the other, a piece per `interval`. After the last link,
    /// no connection succeeds. If there are fewer lists than hosts, several hosts send the same.
    pub fn with_links(count: usize, links: Vec<Vec<Vec<Vec<u8>>>>, interval: Duration) -> Self {
        Self::tell(count, links, false, interval)
    }

    fn tell(
        count: usize,
        links: Vec<Vec<Vec<Vec<u8>>>>,
        for_ever: bool,
        interval: Duration,
    ) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let hosts = Self { folder, count, says: Arc::default() };
        let paths: Vec<PathBuf> = (0..count).map(|host| hosts.path(host)).collect();
        for path in &paths {
            nix::unistd::mkfifo(path, Mode::S_IRWXU).unwrap();
        }
        let says = Arc::clone(&hosts.says);
        let story = Story { links, for_ever };
        thread::spawn(move || tell(&paths, &story, interval, &says));
        hosts
    }

    fn path(&self, host: usize) -> PathBuf {
        self.folder.path().join(format!("h{host:03}"))
    }

    /// Returns the hosts as arguments of `gputop`, with names that fit into their column.
    pub fn targets(&self) -> impl Iterator<Item = String> {
        (0..self.count).map(|host| format!("via:exec cat $F/h{host:03}"))
    }

    /// Returns the environment variable that [`Self::targets`] requires.
    pub fn env(&self) -> (&'static str, &Path) {
        ("F", self.folder.path())
    }

    /// Returns the total number of times that pipes were opened.
    pub fn opened(&self) -> usize {
        self.says.opened.load(Ordering::Relaxed)
    }

    /// Closes all pipes until this is called with false.
    pub fn hold(&self, is_held: bool) {
        self.says.is_held.store(is_held, Ordering::Relaxed);
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        self.says.is_over.store(true, Ordering::Relaxed);
        // A reader that still waits for a pipe to be opened would wait forever.
        for host in 0..self.count {
            drop(open(&self.path(host)));
        }
    }
}

/// Returns an agent's output in pieces: the greeting and hello, and then each frame.
pub fn pieces(updates: impl Iterator<Item = Update>) -> Vec<Vec<u8>> {
    let written = Written::default();
    let (feed, _requests, source) = stream();
    let telling = cut(feed, updates, written.clone());
    // Confirm all frames in advance.
    let input = BufReader::new(Cursor::new("{\"frames\":1000000}\n"));
    let serving = serve(source, None, input, written, || {});
    let runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = { runtime }.build().unwrap();
    runtime.block_on(async {
        let (pieces, served) = tokio::join!(telling, serving);
        served.unwrap();
        pieces
    })
}

async fn cut(feed: Feed, updates: impl Iterator<Item = Update>, written: Written) -> Vec<Vec<u8>> {
    let mut pieces = Vec::new();
    for update in updates {
        feed.push(update);
        // Wait until the update was written.
        while written.0.lock().unwrap().is_empty() {
            tokio::task::yield_now().await;
        }
        for _ in 0..4 {
            tokio::task::yield_now().await;
        }
        pieces.push(std::mem::take(&mut *written.0.lock().unwrap()));
    }
    pieces
}

#[derive(Clone, Default)]
struct Written(Arc<Mutex<Vec<u8>>>);

impl Write for Written {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// The data that hosts send on each link.
struct Story {
    links: Vec<Vec<Vec<Vec<u8>>>>,
    /// Whether the last link is repeated forever.
    for_ever: bool,
}

impl Story {
    fn link(&self, host: usize, number: usize) -> Option<&Vec<Vec<u8>>> {
        let links = &self.links[host % self.links.len()];
        let last = links.last().filter(|_| self.for_ever);
        links.get(number).or(last)
    }
}

fn tell(paths: &[PathBuf], story: &Story, interval: Duration, says: &WriterState) {
    let step = interval / u32::try_from(paths.len()).unwrap();
    let mut pipes: BTreeMap<usize, (File, usize)> = BTreeMap::new();
    let mut opened = vec![0; paths.len()];
    let mut due = Instant::now();
    for host in (0..paths.len()).cycle() {
        if says.is_over.load(Ordering::Relaxed) {
            return;
        }
        if says.is_held.load(Ordering::Relaxed) {
            pipes.clear();
            thread::sleep(Duration::from_millis(10));
            due = Instant::now();
            continue;
        }
        due += step;
        thread::sleep(due.saturating_duration_since(Instant::now()));
        if !pipes.contains_key(&host)
            && story.link(host, opened[host]).is_some()
            && let Some(file) = open(&paths[host])
        {
            says.opened.fetch_add(1, Ordering::Relaxed);
            opened[host] += 1;
            pipes.insert(host, (file, 0));
        }
        let Some((pipe, at)) = pipes.get_mut(&host) else { continue };
        let piece = story.link(host, opened[host] - 1).and_then(|link| link.get(*at));
        let wrote = piece.map(|piece| pipe.write_all(piece).is_ok());
        *at += 1;
        // The reader is gone, or has read everything.
        if wrote != Some(true) {
            pipes.remove(&host);
        }
    }
}

/// Opens a pipe for writing. Returns `None` if it has no reader.
fn open(path: &PathBuf) -> Option<File> {
    let mut options = File::options();
    let options = options.write(true).custom_flags(OFlag::O_NONBLOCK.bits());
    let file = options.open(path).ok()?;
    nix::fcntl::fcntl(&file, nix::fcntl::FcntlArg::F_SETFL(OFlag::empty())).ok()?;
    Some(file)
}
