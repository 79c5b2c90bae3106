use std::io::Write;

use nix::sys::stat::Mode;
use nix::unistd::mkfifo;

use super::*;

/// Returns a FIFO that replaces the kernel log, and its write end.
fn log() -> (tempfile::TempDir, KernelLog, File) {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("kmsg");
    mkfifo(&path, Mode::S_IRWXU).expect("a FIFO");
    let log = KernelLog::open(&path).expect("the log");
    let writer = OpenOptions::new().write(true).open(&path);
    (folder, log, writer.expect("a writer"))
}

fn lines(log: &mut KernelLog) -> Vec<KernelLine> {
    let mut lines = Vec::new();
    log.read(|line| lines.push(line)).expect("the log is open");
    lines
}

fn numbers(log: &mut KernelLog) -> Vec<u64> {
    let number = |line| match line {
        KernelLine::Xid(xid) => xid.number,
        KernelLine::OomKill(kill) => u64::from(kill.pid.0),
    };
    lines(log).into_iter().map(number).collect()
}

fn xid(number: u32) -> String {
    format!(
        "4,1,2,-;NVRM: Xid (PCI:0000:3b:00): {number}, pid=4, name=x\n SUBSYSTEM=pci\n DEVICE=+pci:0000:3b:00.0\n"
    )
}

#[test]
fn joins_lines_that_arrive_in_parts() {
    let (_folder, mut log, mut writer) = log();
    assert!(numbers(&mut log).is_empty());
    writer.write_all(xid(31).as_bytes()).expect("written");
    assert_eq!(numbers(&mut log), [31]);
    let two = xid(43) + "6,3,4,-;eth0: link up\n" + &xid(79);
    let (begin, end) = two.split_at(30);
    writer.write_all(begin.as_bytes()).expect("written");
    assert!(numbers(&mut log).is_empty());
    writer.write_all(end.as_bytes()).expect("written");
    assert_eq!(numbers(&mut log), [43, 79]);
}

#[test]
fn skips_an_endless_line_without_losing_the_next() {
    let (_folder, mut log, mut writer) = log();
    let noise = vec![b'x'; MAX_BYTES];
    for _ in 0..5 {
        writer.write_all(&noise).expect("written");
        assert_eq!(lines(&mut log), []);
        assert!(log.partial.capacity() <= 2 * MAX_BYTES);
    }
    let text = "\n".to_owned() + &xid(48);
    writer.write_all(text.as_bytes()).expect("written");
    assert_eq!(numbers(&mut log), [48]);
}

#[test]
fn reads_a_flood_in_portions() {
    let (_folder, mut log, mut writer) = log();
    let flood = xid(13).repeat(300);
    let writing = std::thread::spawn(move || {
        writer.write_all(flood.as_bytes()).expect("written");
        writer
    });
    let mut seen = 0;
    while seen < 300 {
        seen += lines(&mut log).len();
    }
    drop(writing.join());
    // While another test starts a process, the forked child also has the writer open until it calls exec.
    let started = std::time::Instant::now();
    let closed = loop {
        match log.read(|_| {}) {
            Err(closed) => break closed,
            Ok(_) => assert!(started.elapsed().as_secs() < 30, "the writer was dropped"),
        }
    };
    assert_eq!(closed.reason, Reason::Gone);
}

#[test]
fn refuses_other_files_with_a_reason() {
    let folder = tempfile::tempdir().expect("a folder");
    let reason = |name: &str| {
        let missing = KernelLog::open(&folder.path().join(name)).expect_err("refused");
        (missing.reason, missing.to_string())
    };
    let (why, text) = reason("kmsg");
    assert_eq!(why, Reason::Unsupported);
    assert!(text.ends_with("kmsg does not exist, as in most containers"), "{text}");
    std::fs::write(folder.path().join("file"), "4,1,2,-;NVRM: Xid").expect("a file");
    assert!(reason("file").1.ends_with("is not the kernel log"));
    std::os::unix::fs::symlink("/dev/null", folder.path().join("link")).expect("a link");
    assert!(reason("link").1.ends_with("is not the kernel log"));
    let denied = missing(Path::new("/dev/kmsg"), &Errno::EPERM.into());
    assert_eq!(denied.reason, Reason::Denied);
    assert!(!fixes(&denied, false).is_empty() && !fixes(&denied, true).is_empty());
}
