//! The gputop executable to copy to a remote host: the running program, or one read from a file. Only its ELF header is
//! checked.

use std::fs::File;
use std::io::Seek;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use color_eyre::Result;
use color_eyre::eyre::{Context, bail};
use gputop_model::text::quoted;
use gputop_model::units::Bytes;

/// Linux executable to copy to a remote host.
#[derive(Debug)]
pub struct Program {
    pub file: File,
    pub size: Bytes,
    /// Operating system and architecture as printed by `uname -sm`, or `None` if the NVIDIA driver does not support the
    /// machine.
    pub machine: Option<&'static str>,
}

impl Program {
    /// Opens the running program, even if the program's file has since been replaced.
    pub fn own() -> Result<Self> {
        let file = File::open("/proc/self/exe")
            .wrap_err("cannot copy this program: cannot read /proc/self/exe")?;
        Self::of(file, "this program")
    }

    /// Opens the program to copy to a host of type `machine`: the running one, or `gputop-ARCH` beside it if the host
    /// has a different architecture.
    pub fn for_machine(machine: &str) -> Result<Self> {
        let own = Self::own()?;
        let folder = std::env::current_exe().ok();
        let folder = folder.as_deref().and_then(Path::parent);
        match folder.and_then(|folder| other_architecture(folder, machine)) {
            Some(path) if own.machine != Some(machine) => Self::in_file(&path),
            _ => Ok(own),
        }
    }

    pub fn in_file(path: &Path) -> Result<Self> {
        let name = format!("`{}`", quoted(&path.to_string_lossy()));
        let file = File::open(path).wrap_err_with(|| format!("cannot copy {name}"))?;
        Self::of(file, &name)
    }

    fn of(file: File, name: &str) -> Result<Self> {
        let facts = file.metadata()?;
        let mut head = [0; HEAD];
        // Read with `read_exact_at`, which does not move the file offset, so that the copy starts at the beginning.
        let read = file.read_exact_at(&mut head, 0);
        if !facts.is_file() || read.is_err() || !is_elf(&head) {
            bail!("cannot copy {name}: not a Linux program. Name a gputop executable");
        }
        Ok(Self { file, size: Bytes(facts.len()), machine: machine(&head) })
    }

    /// Returns the output of cksum(1) for the program: checksum and size.
    pub fn cksum(&self) -> Result<String> {
        let output = Command::new("cksum")
            .stdin(self.file.try_clone()?)
            .stderr(Stdio::null())
            .output()
            .wrap_err("cannot run `cksum` to verify the copy. Install coreutils")?;
        // Rewind the file, because the clone shares the file offset.
        (&self.file).rewind()?;
        let words = String::from_utf8_lossy(&output.stdout);
        match words.split_whitespace().collect::<Vec<&str>>().as_slice() {
            [sum, size] if output.status.success() => Ok(format!("{sum} {size}")),
            _ => bail!("cannot verify the copy: `cksum` failed"),
        }
    }
}

/// Length of an ELF header up to and including e_machine, see elf(5).
const HEAD: usize = 20;

fn is_elf(head: &[u8; HEAD]) -> bool {
    head.starts_with(b"\x7fELF")
}

/// Returns the machine type in an ELF header, or `None` if NVIDIA has no driver for it. NVIDIA has drivers only for
/// 64-bit little-endian machines.
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

/// Returns `gputop-ARCH` in `folder`. Accepts only known architectures, because `machine` comes from a remote host.
fn other_architecture(folder: &Path, machine: &str) -> Option<PathBuf> {
    let arch = ["x86_64", "aarch64"]
        .into_iter()
        .find(|arch| machine.strip_prefix("Linux ") == Some(arch))?;
    let path = folder.join(format!("gputop-{arch}"));
    path.is_file().then_some(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_the_program_for_another_architecture_beside_this_one() {
        let folder = tempfile::tempdir().expect("a directory");
        let path = folder.path().join("gputop-aarch64");
        std::fs::write(&path, "").expect("a writable directory");
        let found = |machine| other_architecture(folder.path(), machine);
        assert_eq!(found("Linux aarch64"), Some(path));
        assert_eq!(found("Linux x86_64"), None);
        assert_eq!(found("Linux ../gputop-aarch64"), None);
    }

    #[test]
    fn detects_the_machine_of_the_running_program() {
        let own = Program::own().expect("a running program");
        let here = format!("Linux {}", std::env::consts::ARCH);
        assert_eq!(own.machine, Some(here.as_str()));
        assert!(own.size > Bytes::mib(1));
    }

    #[test]
    fn rejects_files_that_are_not_linux_programs() {
        let folder = tempfile::tempdir().expect("a directory");
        let path = folder.path().join("gputop");
        // The contents are a 64-bit Mach-O file, an empty file and a script.
        for content in [
            &b"\xcf\xfa\xed\xfe\x0c\x00\x00\x01more than twenty"[..],
            b"",
            b"#!/bin/sh\nexec something else\n",
        ] {
            std::fs::write(&path, content).expect("a writable directory");
            let why = Program::in_file(&path).expect_err("not a program").to_string();
            assert!(why.contains("gputop`: not a Linux program"), "{why}");
        }
        let why = Program::in_file(folder.path()).expect_err("a directory").to_string();
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
