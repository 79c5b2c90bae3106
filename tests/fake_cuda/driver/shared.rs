//! The memory that each process holds, in one locked file, because all processes share the card. Like the kernel
//! driver, this frees a process's memory when it exits. The entry of an exited process remains, so that a test can read
//! its last values.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, Write};

use serde::{Deserialize, Serialize};

/// By PID.
pub type Holders = BTreeMap<u32, Holding>;

#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Holding {
    pub context: u64,
    pub bytes: u64,
    pub peak: u64,
    /// Number of separate allocations, from blocks and mapped pages.
    pub pieces: u64,
}

fn open() -> Option<File> {
    let path = std::env::var_os("FAKE_CUDA_STATE")?;
    let mut options = OpenOptions::new();
    let file = options.read(true).write(true).create(true).truncate(false);
    let file = file.open(path).expect("the state");
    file.lock().expect("a lock");
    Some(file)
}

fn read(file: &mut File) -> Holders {
    let mut text = String::new();
    file.read_to_string(&mut text).expect("the state");
    serde_json::from_str(&text).unwrap_or_default()
}

/// Returns the memory held by other live processes.
pub fn others() -> u64 {
    let Some(mut file) = open() else { return 0 };
    let holders = read(&mut file);
    let own = std::process::id();
    let alive = holders.iter().filter(|(pid, _)| **pid != own && lives(**pid));
    alive.map(|(_, held)| held.context + held.bytes).sum()
}

pub fn write(held: Holding) {
    let Some(mut file) = open() else { return };
    let mut holders = read(&mut file);
    holders.insert(std::process::id(), held);
    let text = serde_json::to_string(&holders).expect("the state");
    file.set_len(0).expect("the state");
    file.rewind().expect("the state");
    file.write_all(text.as_bytes()).expect("the state");
}

/// Returns false for zombies too, because the driver has already freed their memory.
fn lives(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = stat.rsplit(')').next().unwrap_or_default().trim_start();
    !state.is_empty() && !state.starts_with(['Z', 'X'])
}
