//! A process with the memory of a dump: a live target for the reader, without PyTorch and without a download.
//!
//! The test binary starts itself again. The child maps the dump's ranges at their recorded addresses, from files that
//! are named like the libraries and deleted at once. Then it obeys one line at a time: `poke ADDRESS VALUE` writes a
//! word, `count ADDRESS` starts a thread that increments a word, `threads N` starts N threads that sleep and wake,
//! `fork` makes a copy, and `exec` becomes another program.
#![allow(unsafe_code)]

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};

use gputop_model::units::Pid;
use gputop_peek::memory::Memory;
use gputop_peek::memory::dump::Dump;
use gputop_peek::memory::maps::Mapping;
use nix::libc;
use nix::unistd::ForkResult;

const PAGE: u64 = 4_096;
/// Exit code of the child if an address is in use. The system lays out each process differently, so another attempt may
/// work.
const ADDRESS_IN_USE_EXIT_CODE: i32 = 77;

pub struct Target {
    child: Child,
    stdin: ChildStdin,
    answers: BufReader<UnixStream>,
}

impl Target {
    pub fn start(dump: &Path) -> Self {
        Self::start_with(dump, |_| {})
    }

    pub fn start_with(dump: &Path, adjust: impl Fn(&mut Command)) -> Self {
        (0..10).find_map(|_| Self::try_start(dump, &adjust)).expect("a free place")
    }

    fn try_start(dump: &Path, adjust: &impl Fn(&mut Command)) -> Option<Self> {
        // Not a pipe to this process, and not its own output: gputop would follow the file to which all tests print.
        let (answers, stdout) = UnixStream::pair().unwrap();
        let mut command = Command::new(std::env::current_exe().unwrap());
        command
            .args(["--exact", "support::torch_target::child", "--ignored", "--nocapture"])
            .env("GPUTOP_TEST_DUMP", dump)
            .stderr(Stdio::null());
        adjust(&mut command);
        command.stdin(Stdio::piped()).stdout(OwnedFd::from(stdout));
        let mut child = command.spawn().unwrap();
        // Closes the other end here, so that the answers end with the child.
        drop(command);
        let stdin = child.stdin.take().unwrap();
        let mut target = Self { child, stdin, answers: BufReader::new(answers) };
        target.wait_for("ready").then_some(target)
    }

    pub fn pid(&self) -> Pid {
        Pid(self.child.id())
    }

    pub fn poke(&mut self, address: u64, value: u64) {
        writeln!(self.stdin, "poke {address} {value}").unwrap();
        assert!(self.wait_for("poked"));
    }

    pub fn count(&mut self, address: u64) {
        writeln!(self.stdin, "count {address}").unwrap();
        assert!(self.wait_for("counts"));
    }

    pub fn threads(&mut self, count: usize) {
        writeln!(self.stdin, "threads {count}").unwrap();
        assert!(self.wait_for("started"));
    }

    pub fn exec(&mut self) {
        writeln!(self.stdin, "exec").unwrap();
    }

    /// Forks the process, as a DataLoader forks its workers: a copy with the same allocator state and the same files.
    pub fn fork(&mut self) -> u32 {
        writeln!(self.stdin, "fork").unwrap();
        let mut lines = (&mut self.answers).lines().map_while(Result::ok);
        lines.find_map(|line| line.strip_prefix("forked ")?.parse().ok()).expect("a copy")
    }

    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Returns false if the child exited instead.
    fn wait_for(&mut self, word: &str) -> bool {
        let mut lines = (&mut self.answers).lines().map_while(Result::ok);
        lines.any(|line| line == word)
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
#[ignore = "the child of the tests in torch_live.rs"]
fn child() {
    let Some(path) = std::env::var_os("GPUTOP_TEST_DUMP") else { return };
    let dump = Dump::from_bytes(&std::fs::read(path).unwrap()).unwrap();
    if std::env::var_os("GPUTOP_TEST_UNDUMPABLE").is_some() {
        nix::sys::prctl::set_dumpable(false).unwrap();
    }
    inhabit(dump);
    say("ready");
    for line in std::io::stdin().lines() {
        run_command(&line.unwrap());
    }
}

fn say(word: &str) {
    let mut out = std::io::stdout().lock();
    // The test harness has already started a line.
    writeln!(out, "\n{word}").unwrap();
    out.flush().unwrap();
}

fn run_command(line: &str) {
    let words: Vec<&str> = line.split(' ').collect();
    match words[..] {
        ["poke", address, value] => {
            let address: usize = address.parse().unwrap();
            // SAFETY: an aligned word of a range that `inhabit` mapped writable; no Rust object lies there.
            unsafe { std::ptr::write_volatile(address as *mut u64, value.parse().unwrap()) };
            say("poked");
        }
        // SAFETY: the copy only waits to be killed.
        ["fork"] => match unsafe { nix::unistd::fork() }.unwrap() {
            ForkResult::Parent { child } => say(&format!("forked {child}")),
            ForkResult::Child => {
                let _ = nix::sys::prctl::set_pdeathsig(nix::sys::signal::Signal::SIGKILL);
                loop {
                    std::thread::park();
                }
            }
        },
        ["count", address] => {
            let address: usize = address.parse().unwrap();
            std::thread::spawn(move || {
                for value in 0.. {
                    // SAFETY: as for `poke`.
                    unsafe { std::ptr::write_volatile(address as *mut u64, value) };
                }
            });
            say("counts");
        }
        ["threads", count] => {
            for _ in 0..count.parse().unwrap() {
                std::thread::spawn(|| {
                    loop {
                        std::thread::sleep(std::time::Duration::from_millis(1));
                    }
                });
            }
            say("started");
        }
        ["exec"] => panic!("{}", Command::new("sleep").arg("1000").exec()),
        _ => panic!("{line}"),
    }
}

fn inhabit(mut dump: Dump) {
    let mut maps = dump.maps().unwrap();
    maps.retain(|map| !map.is_heap);
    let directory = tempfile::tempdir().unwrap();
    for map in &maps {
        let file = File::options()
            .create(true)
            .truncate(false)
            .read(true)
            .write(true)
            .open(directory.path().join(map.file_name()))
            .unwrap();
        let length = map.offset + map.end - map.start;
        if file.metadata().unwrap().len() < length {
            file.set_len(length).unwrap();
        }
        place(map.start, map.end - map.start, Some((&file, map.offset)));
    }
    let is_of_file = |page: &u64| maps.iter().any(|map| (map.start..map.end).contains(page));
    let pages: BTreeSet<u64> = dump
        .bytes_mut()
        .flat_map(|(at, bytes)| {
            (at / PAGE..=(at + bytes.len() as u64 - 1) / PAGE).map(|p| p * PAGE)
        })
        .filter(|page| !is_of_file(page))
        .collect();
    for page in pages {
        place(page, PAGE, None);
    }
    for (at, bytes) in dump.bytes_mut() {
        // SAFETY: all pages of the range were mapped above, writable, and hold no Rust object.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), at as *mut u8, bytes.len()) };
    }
    maps.iter().filter(|map| map.executable).for_each(make_executable);
}

fn place(address: u64, len: u64, file: Option<(&File, u64)>) {
    let (descriptor, offset) = file.map_or((-1, 0), |(file, offset)| (file.as_raw_fd(), offset));
    let anonymous = if file.is_some() { 0 } else { libc::MAP_ANONYMOUS };
    let wanted = address as *mut libc::c_void;
    // SAFETY: MAP_FIXED_NOREPLACE maps over nothing that is there; kernels before 4.17 take it as a hint, and the
    // result is compared.
    let placed = unsafe {
        libc::mmap(
            wanted,
            len.try_into().unwrap(),
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_FIXED_NOREPLACE | anonymous,
            descriptor,
            offset.try_into().unwrap(),
        )
    };
    if placed != wanted {
        std::process::exit(ADDRESS_IN_USE_EXIT_CODE);
    }
}

fn make_executable(map: &Mapping) {
    let len = usize::try_from(map.end - map.start).unwrap();
    // SAFETY: a range that `place` mapped; nothing in it is written from now on.
    let done = unsafe {
        libc::mprotect(map.start as *mut libc::c_void, len, libc::PROT_READ | libc::PROT_EXEC)
    };
    assert_eq!(done, 0);
}
