//! A Python program with the memory of a dump: like [`torch_target`](super::torch_target), but with a Python stack to
//! read.
//!
//! The program `train.py` maps the memory of a plan, runs more code of a test, and waits in a function `step`. For each
//! line `ADDRESS VALUE` that it receives, it writes a word.

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};

use gputop_model::units::Pid;
use gputop_peek::memory::Memory;
use gputop_peek::memory::dump::Dump;
use serde_json::json;

use super::fake_machine::Guarded;

const PAGE: u64 = 4_096;

/// Maps only unused addresses (`MAP_FIXED_NOREPLACE`), and exits if one is in use.
const PROGRAM: &str = r"import ctypes, json, os, sys
libc = ctypes.CDLL(None)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t] + 3 * [ctypes.c_int] + [ctypes.c_long]
libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]

def place(address, length, file, offset):
    fd = os.open(file, os.O_RDWR | os.O_CREAT) if file else -1
    if file and os.fstat(fd).st_size < offset + length:
        os.ftruncate(fd, offset + length)
    if libc.mmap(address, length, 3, 0x100002 | (0 if file else 0x20), fd, offset) != address:
        sys.exit(77)

def step():
    for line in sys.stdin:
        address, value = map(int, line.split())
        ctypes.c_uint64.from_address(address).value = value
        print('poked', flush=True)

def main():
    plan = json.load(open(sys.argv[1]))
    for one in plan['places']:
        place(*one)
    for address, text in plan['bytes']:
        data = bytes.fromhex(text)
        ctypes.memmove(address, data, len(data))
    for address, length in plan['executable']:
        libc.mprotect(address, length, 5)
    exec(plan['code'], globals())
    print('ready', flush=True)
    step()

main()
";

pub struct PythonTarget {
    program: Guarded,
    answers: BufReader<std::process::ChildStdout>,
}

impl PythonTarget {
    pub fn start(python: &Path, dump: &Path) -> Self {
        Self::with(python, dump, "")
    }

    /// Like [`start`](Self::start), with code that the program runs in its main module.
    pub fn with(python: &Path, dump: &Path, code: &str) -> Self {
        (0..10).find_map(|_| Self::try_start(python, dump, code)).expect("a free place")
    }

    fn try_start(python: &Path, dump: &Path, code: &str) -> Option<Self> {
        // Deleted once the program is ready. Its mappings remain, as with a library that was replaced.
        let folder = tempfile::tempdir().unwrap();
        let [plan, program] = ["plan", "train.py"].map(|name| folder.path().join(name));
        fs::write(&plan, plan_of(dump, folder.path(), code)).unwrap();
        fs::write(&program, PROGRAM).unwrap();
        let mut command = Command::new(python);
        command.arg(&program).arg(&plan).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut program = Guarded(command.spawn().unwrap());
        let mut target =
            Self { answers: BufReader::new(program.0.stdout.take().unwrap()), program };
        (target.answer() == "ready").then_some(target)
    }

    pub fn pid(&self) -> Pid {
        Pid(self.program.0.id())
    }

    pub fn poke(&mut self, address: u64, value: u64) {
        let mut input = self.program.0.stdin.as_ref().unwrap();
        writeln!(input, "{address} {value}").unwrap();
        assert_eq!(self.answer(), "poked");
    }

    fn answer(&mut self) -> String {
        let mut line = String::new();
        self.answers.read_line(&mut line).unwrap();
        line.trim().to_owned()
    }
}

/// Returns the plan: which bytes to map at which addresses.
fn plan_of(dump: &Path, folder: &Path, code: &str) -> String {
    let mut dump = Dump::from_bytes(&fs::read(dump).unwrap()).unwrap();
    let maps = dump.maps().unwrap();
    let files = maps.iter().map(|map| {
        let file = folder.join(map.file_name());
        json!([map.start, map.end - map.start, file, map.offset])
    });
    let mut places: Vec<_> = files.collect();
    let bytes: Vec<(u64, Vec<u8>)> =
        dump.bytes_mut().map(|(at, bytes)| (at, bytes.to_vec())).collect();
    let pages: BTreeSet<u64> = bytes
        .iter()
        .flat_map(|(at, bytes)| at / PAGE..=(at + bytes.len() as u64 - 1) / PAGE)
        .map(|page| page * PAGE)
        .filter(|page| !maps.iter().any(|map| (map.start..map.end).contains(page)))
        .collect();
    places.extend(pages.iter().map(|page| json!([page, PAGE, null, 0])));
    let hex = |bytes: &[u8]| -> String { bytes.iter().map(|b| format!("{b:02x}")).collect() };
    let executable = maps.iter().filter(|map| map.executable);
    json!({
        "code": code,
        "places": places,
        "bytes": bytes.iter().map(|(at, bytes)| (at, hex(bytes))).collect::<Vec<_>>(),
        "executable": executable.map(|map| (map.start, map.end - map.start)).collect::<Vec<_>>(),
    })
    .to_string()
}
