//! The program that is copied to a remote host: this one, or one from a file. Only its ELF header is checked here.

use std::fs::File;
use std::io::Seek;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Command, Stdio};

use color_eyre::Result;
use color_eyre::eyre::{Context, bail};

use crate::model::text::quoted;
use crate::model::units::Bytes;

/// A program for Linux.
#[derive(Debug)]
pub struct Program {
    pub file: File,
    pub bytes: u64,
    /// Operating system and architecture as printed by `uname -sm`, or `None` if the NVIDIA driver does not support it.
    pub machine: Option<&'static str>,
}

impl Program {
    /// Opens the running program, even if its file was replaced since it started.
    pub fn own() -> Result<Self> {
        let file = File::open("/proc/self/exe")
            .wrap_err("cannot copy this program: cannot read /proc/self/exe")?;
        Self::of(file, "this program")
    }

    pub fn in_file(path: &Path) -> Result<Self> {
        let name = format!("`{}`", quoted(&path.to_string_lossy()));
        let file = File::open(path).wrap_err_with(|| format!("cannot copy {name}"))?;
        Self::of(file, &name)
    }

    fn of(file: File, name: &str) -> Result<Self> {
        let facts = file.metadata()?;
        let mut head = [0; HEAD];
        // This does not move the file offset, so the copy starts at the beginning.
        let read = file.read_exact_at(&mut head, 0);
        if !facts.is_file() || read.is_err() || !is_elf(&head) {
            bail!("cannot copy {name}: not a Linux program. Name a gputop executable");
        }
        Ok(Self {
            file,
            bytes: facts.len(),
            machine: machine(&head),
        })
    }

    /// Returns the output of cksum(1): a checksum and the size.
    pub fn cksum(&self) -> Result<String> {
        let output = Command::new("cksum")
            .stdin(self.file.try_clone()?)
            .stderr(Stdio::null())
            .output()
            .wrap_err("cannot run `cksum` to verify the copy. Install coreutils")?;
        // The clone shares the file offset.
        (&self.file).rewind()?;
        let words = String::from_utf8_lossy(&output.stdout);
        let words: Vec<&str> = words.split_whitespace().collect();
        match words.as_slice() {
            [sum, size] if output.status.success() => Ok(format!("{sum} {size}")),
            _ => bail!("cannot verify the copy: `cksum` failed"),
        }
    }

    pub fn size(&self) -> Bytes {
        Bytes(self.bytes)
    }
}

/// Length of the ELF header up to and including e_machine, see elf(5).
const HEAD: usize = 20;

fn is_elf(head: &[u8; HEAD]) -> bool {
    head.starts_with(b"\x7fELF")
}

/// Returns the machine of an ELF header if NVIDIA has drivers for it. All of these are 64-bit and little-endian.
fn machine(head: &[u8; HEAD]) -> Option<&'static str> {
    let (is_64_bit, is_little_endian) = (head[4] == 2, head[5] == 1);
    if !is_64_bit || !is_little_endian {
        return None;
    }
    match u16::from_le_bytes([head[18], head[19]]) {
        21 => Some("Linux ppc64le"),
        62 => Some("Linux x86_64"),
        183 => Some("Linux aarch64"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn detects_the_machine_of_the_running_program() {
        let own = Program::own().expect("a running program");
        let here = format!("Linux {}", std::env::consts::ARCH);
        assert_eq!(own.machine, Some(here.as_str()));
        assert!(own.bytes > 1 << 20);
    }

    #[test]
    fn rejects_files_that_are_not_linux_programs() {
        let folder = tempfile::tempdir().expect("a directory");
        let path = folder.path().join("gputop");
        // 64-bit Mach-O, an empty file, a script.
        for content in [
            &b"\xcf\xfa\xed\xfe\x0c\x00\x00\x01more than twenty"[..],
            b"",
            b"#!/bin/sh\nexec something else\n",
        ] {
            std::fs::write(&path, content).expect("a writable directory");
            let why = Program::in_file(&path)
                .expect_err("not a program")
                .to_string();
            assert!(why.contains("gputop`: not a Linux program"), "{why}");
        }
        let why = Program::in_file(folder.path())
            .expect_err("a directory")
            .to_string();
        assert!(why.contains("not a Linux program"), "{why}");
        let missing = Program::in_file(&folder.path().join("none"));
        let why = format!("{:#}", missing.expect_err("no such file"));
        assert!(why.contains("none`: No such file"), "{why}");
    }

    #[test]
    fn reads_the_machine_from_the_elf_header() {
        let head = |class: u8, order: u8, machine: u8| {
            let mut head = [0; HEAD];
            head[..6].copy_from_slice(&[0x7f, b'E', b'L', b'F', class, order]);
            head[18] = machine;
            head
        };
        assert_eq!(machine(&head(2, 1, 183)), Some("Linux aarch64"));
        assert_eq!(machine(&head(2, 1, 3)), None);
        assert_eq!(machine(&head(1, 1, 62)), None, "x32");
        assert_eq!(machine(&head(2, 2, 21)), None, "big-endian");
    }
}
