//! What is copied to a host without gputop: this program, or one in a file, of which only the head is looked at here.

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
    /// For which it is, as `uname -sm` prints it; `None` for one on which the driver does not run.
    pub machine: Option<&'static str>,
}

impl Program {
    /// This one, also when it was replaced since it was started.
    pub fn own() -> Result<Self> {
        let file = File::open("/proc/self/exe")
            .wrap_err("this program cannot be read, so it cannot be copied")?;
        Self::of(file, "this program")
    }

    pub fn in_file(path: &Path) -> Result<Self> {
        let name = format!("`{}`", quoted(&path.to_string_lossy()));
        let file = File::open(path)
            .wrap_err_with(|| format!("{name} cannot be read, so it cannot be copied"))?;
        Self::of(file, &name)
    }

    fn of(file: File, name: &str) -> Result<Self> {
        let facts = file.metadata()?;
        let mut head = [0; HEAD];
        // Read at a place of its own: the copy begins at the beginning.
        let read = file.read_exact_at(&mut head, 0);
        if !facts.is_file() || read.is_err() || !is_elf(&head) {
            bail!("{name} is no program for Linux, so it cannot be copied");
        }
        Ok(Self {
            file,
            bytes: facts.len(),
            machine: machine(&head),
        })
    }

    /// Returns what cksum(1) prints for it: a checksum and the size.
    pub fn cksum(&self) -> Result<String> {
        let output = Command::new("cksum")
            .stdin(self.file.try_clone()?)
            .stderr(Stdio::null())
            .output()
            .wrap_err("cannot run cksum, which is part of coreutils")?;
        // The offset is shared with the clone.
        (&self.file).rewind()?;
        let words = String::from_utf8_lossy(&output.stdout);
        let words: Vec<&str> = words.split_whitespace().collect();
        match words.as_slice() {
            [sum, size] if output.status.success() => Ok(format!("{sum} {size}")),
            _ => bail!("cksum failed, so the copy could not be verified"),
        }
    }

    pub fn size(&self) -> Bytes {
        Bytes(self.bytes)
    }
}

/// As much of an ELF file as says for what it is: elf(5), e_ident up to and including e_machine.
const HEAD: usize = 20;

fn is_elf(head: &[u8; HEAD]) -> bool {
    head.starts_with(b"\x7fELF")
}

/// The machines that NVIDIA has drivers for, all of 64 bits and little-endian.
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
    fn this_program_is_for_this_machine() {
        let own = Program::own().expect("it runs");
        let here = format!("Linux {}", std::env::consts::ARCH);
        assert_eq!(own.machine, Some(here.as_str()));
        assert!(own.bytes > 1 << 20);
    }

    #[test]
    fn what_is_no_program_for_linux_is_not_copied() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("gputop");
        // Mach-O of 64 bits; a program of nothing; a script.
        for content in [
            &b"\xcf\xfa\xed\xfe\x0c\x00\x00\x01more than twenty"[..],
            b"",
            b"#!/bin/sh\nexec something else\n",
        ] {
            std::fs::write(&path, content).expect("it can be written");
            let why = Program::in_file(&path).expect_err("no program").to_string();
            assert!(
                why.ends_with("gputop` is no program for Linux, so it cannot be copied"),
                "{why}"
            );
        }
        let why = Program::in_file(folder.path())
            .expect_err("a folder")
            .to_string();
        assert!(
            why.ends_with("is no program for Linux, so it cannot be copied"),
            "{why}"
        );
        let why = Program::in_file(&folder.path().join("none"))
            .expect_err("nothing")
            .to_string();
        assert!(
            why.ends_with("none` cannot be read, so it cannot be copied"),
            "{why}"
        );
    }

    #[test]
    fn the_head_tells_the_machine() {
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
