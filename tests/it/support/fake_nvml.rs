//! The scriptable NVML of tests/fake_nvml for tests: a directory with its scenario and call log.
//!
//! A child process uses it through [`FakeNvml::env`]. A test in this process uses [`FakeNvml::load`], which loads a
//! copy of the library from that directory. Each copy has its own state, so tests can run in parallel.
#![allow(dead_code)]

// Checks a scenario before the library gets it, since the library can only ignore a bad one.
#[path = "../../fake_nvml/scenario/mod.rs"]
#[allow(unused_imports)]
pub mod scenario;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

use nvml_wrapper::Nvml;
use nvml_wrapper::error::NvmlError;
use tempfile::TempDir;

use super::deadline::{DEADLINE, pause};

/// A machine defined by a scenario. Dropping it removes its directory.
pub struct FakeNvml {
    dir: TempDir,
}

impl FakeNvml {
    /// `text` is TOML in the format of tests/fake_nvml/scenario/mod.rs. Empty text is a machine without a GPU.
    pub fn new(text: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("calls.txt"), "").unwrap();
        let fake = Self { dir };
        fake.replace(text);
        fake
    }

    /// Returns a machine with `n` idle H200s, followed by `more`.
    pub fn h200s(n: usize, more: &str) -> Self {
        Self::new(&format!("{}{more}", "[[gpu]]\n".repeat(n)))
    }

    /// Replaces the scenario. The library notices within 3 ms.
    pub fn replace(&self, text: &str) {
        if let Err(why) = scenario::Scenario::parse(text) {
            panic!("the scenario is no good: {why}\n{text}");
        }
        let new = self.dir.path().join("scenario.new");
        // The library takes an empty file for one that is still being written.
        fs::write(&new, format!("{text}\n")).unwrap();
        fs::rename(new, self.scenario()).unwrap();
    }

    /// Writes the scenario in place and unchecked, as a careless editor would.
    pub fn write_raw(&self, text: &str) {
        fs::write(self.scenario(), text).unwrap();
    }

    fn scenario(&self) -> PathBuf {
        self.dir.path().join("scenario.toml")
    }

    /// Returns the variables that make a child process see this machine. Its real processes are those of all tests, so
    /// it does not look for new programs that use CUDA.
    pub fn env(&self) -> Vec<(&'static str, OsString)> {
        vec![
            ("GPUTOP_CANDIDATES", "0".into()),
            ("GPUTOP_NVML", library().into()),
            ("FAKE_NVML_SCENARIO", self.scenario().into()),
            ("FAKE_NVML_CALLS", self.dir.path().join("calls.txt").into()),
        ]
    }

    pub fn load(&self) -> Nvml {
        self.try_load().unwrap()
    }

    /// Loads this machine's NVML into this process.
    pub fn try_load(&self) -> Result<Nvml, NvmlError> {
        Nvml::builder().lib_path(&self.library_copy()).init()
    }

    /// Returns the path of this machine's own copy of the library, for loading it into this process.
    pub fn library_copy(&self) -> OsString {
        let copy = self.dir.path().join("libnvidia-ml.so.1");
        if !copy.exists() {
            fs::copy(library(), &copy).unwrap();
        }
        copy.into()
    }

    /// Returns the path of a copy of the library without these symbols, as of an older driver. Their names are changed in
    /// the table of symbols.
    pub fn library_without(&self, symbols: &[&str]) -> OsString {
        let mut bytes = fs::read(library()).unwrap();
        for symbol in symbols {
            let name = format!("\0{symbol}\0");
            let is_here = |bytes: &[u8]| {
                bytes.windows(name.len()).position(|window| window == name.as_bytes())
            };
            assert!(is_here(&bytes).is_some(), "{symbol} is not in the library");
            while let Some(at) = is_here(&bytes) {
                bytes[at + 1] = b'X';
            }
        }
        let copy = self.dir.path().join("libnvidia-ml.so.old");
        fs::write(&copy, bytes).unwrap();
        copy.into()
    }

    /// Returns the calls made so far.
    pub fn calls(&self) -> Calls {
        Calls::read(&self.dir.path().join("calls.txt"))
    }

    /// Waits until the calls satisfy `wanted`, and returns them.
    pub fn wait_calls(&self, what: &str, wanted: impl Fn(&Calls) -> bool) -> Calls {
        let start = Instant::now();
        loop {
            let calls = self.calls();
            if wanted(&calls) {
                return calls;
            }
            assert!(start.elapsed() < DEADLINE, "waited for {what}, got {calls:#?}");
            pause(start);
        }
    }
}

/// Number of calls of each kind, by the names that scenarios use.
#[derive(Debug, Clone, Default)]
pub struct Calls(BTreeMap<(String, Option<usize>), u64>);

impl Calls {
    fn read(file: &Path) -> Self {
        let mut calls = Self::default();
        for line in fs::read_to_string(file).unwrap_or_default().lines() {
            let mut words = line.split_whitespace();
            let (Some(name), Some(gpu), Some(count)) = (words.next(), words.next(), words.next())
            else {
                continue;
            };
            let key = (name.to_owned(), gpu.parse().ok());
            *calls.0.entry(key).or_default() += count.parse::<u64>().unwrap();
        }
        calls
    }

    /// Over all GPUs.
    pub fn of(&self, name: &str) -> u64 {
        let counts = self.0.iter().filter(|((n, _), _)| n == name);
        counts.map(|(_, count)| count).sum()
    }

    pub fn on(&self, name: &str, gpu: usize) -> u64 {
        let key = (name.to_owned(), Some(gpu));
        self.0.get(&key).copied().unwrap_or(0)
    }

    pub fn iter(&self) -> impl Iterator<Item = (&str, Option<usize>, u64)> {
        let counts = self.0.iter();
        counts.map(|((name, gpu), count)| (name.as_str(), *gpu, *count))
    }
}

/// Returns the path of the library that cargo built beside gputop.
pub fn library() -> PathBuf {
    let gputop = Path::new(env!("CARGO_BIN_EXE_gputop"));
    let library = gputop.with_file_name("examples/libfake_nvml.so");
    assert!(
        library.exists(),
        "{} is not there: `cargo test` builds it, `cargo test --test it` does not; \
         run `cargo build --example fake_nvml` once (with --release for benches)",
        library.display()
    );
    library
}
