//! Measures how fast the release binary reads a quiet log and one with an error in most lines, its memory use on a long
//! stream, and its run time for a short log.

use std::io::Write;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::Figure;

const MIB: usize = 1 << 20;
/// Lines of the quiet log, as training scripts, launchers and libraries print them.
const QUIET: &[&str] = &[
    "{'loss': 1.8842, 'grad_norm': 2.104, 'learning_rate': 1.99e-05, 'epoch': 0.01}\n",
    "2026-11-20 12:00:01,123 INFO trainer step 1200 loss 0.8731 lr 3.0e-4 tokens/s 41234 mem 71.3 GiB\n",
    " 12%|#2        | 1200/10000 [10:02<1:13:31,  1.99it/s, loss=0.873]\r",
    "[rank3]:[I1120 12:00:02.100 ProcessGroupWrapper.cpp:111] all ranks are ready for the next collective\n",
    "node17:1234:1290 [3] NCCL INFO Channel 07/0 : 3[3] -> 4[4] via P2P/CUMEM/read\n",
    "Epoch 3: validation accuracy 0.8123 (best 0.8201), saved to /data/run/checkpoint-1200\n",
    "W1120 12:00:03.200 dataset.py:88] sample 812311 has 8123 tokens, cut to 4096\n",
];

/// Measures the binary that Cargo built for the benches. `stream` is the amount of data piped to standard input, in GB.
pub fn measure(stream: u64) -> Vec<Figure> {
    vec![throughput(), dense(), memory(stream), short()]
}

fn gputop() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gputop"));
    command.arg("explain").stdout(Stdio::null()).stderr(Stdio::null());
    command
}

/// Returns about `size` bytes of ordinary output.
fn quiet(size: usize) -> Vec<u8> {
    let mut log = Vec::with_capacity(size + 256);
    for n in 0.. {
        if log.len() >= size {
            break;
        }
        // Vary the order of the lines: a repeating pattern would make the search unrealistically fast.
        let line = QUIET[(n * 7 + n / 11) % QUIET.len()];
        log.extend_from_slice(line.as_bytes());
    }
    log
}

fn throughput() -> Figure {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("quiet.log");
    let size = 1024 * MIB;
    {
        let piece = quiet(16 * MIB);
        let mut file = std::fs::File::create(&path).unwrap();
        for _ in 0..size / piece.len() {
            file.write_all(&piece).unwrap();
        }
    }
    let size = std::fs::metadata(&path).unwrap().len();
    let best = (0..3).map(|_| {
        let start = Instant::now();
        gputop().arg(&path).status().unwrap();
        start.elapsed()
    });
    let best = best.min().unwrap();
    let rate = size as f64 / best.as_secs_f64() / 1e6;
    Figure {
        what: format!("a quiet log of {} MB [MB/s]", size / 1_000_000),
        reached: format!("{rate:.0}"),
        wanted: ">= 500".to_owned(),
        met: rate >= 500.0,
    }
}

/// Measures a log with hundreds of different errors and programs: the text of all cards.
fn dense() -> Figure {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("dense.log");
    let cards = concat!(env!("CARGO_MANIFEST_DIR"), "/crates/explain/assets/cards");
    let mut cards: Vec<_> =
        std::fs::read_dir(cards).unwrap().map(|card| card.unwrap().path()).collect();
    cards.sort();
    let log: Vec<u8> = cards.iter().flat_map(|card| std::fs::read(card).unwrap()).collect();
    std::fs::write(&path, &log).unwrap();
    let start = Instant::now();
    gputop().arg(&path).status().unwrap();
    let seconds = start.elapsed().as_secs_f64();
    Figure {
        what: format!("the text of all cards, {} KB [s]", log.len() / 1_000),
        reached: format!("{seconds:.1}"),
        wanted: "<= 8".to_owned(),
        met: seconds <= 8.0,
    }
}

/// Measures resident memory while many GB are piped to standard input, with occasional incidents.
fn memory(stream: u64) -> Figure {
    let mut child = gputop().stdin(Stdio::piped()).spawn().unwrap();
    let mut input = child.stdin.take().unwrap();
    let mut piece = quiet(8 * MIB);
    piece.extend_from_slice(
        b"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 23.69 GiB of which 1.06 GiB is free.\n",
    );
    let mut peak = 0;
    let mut sent = 0_u64;
    while sent < stream * 1_000_000_000 {
        input.write_all(&piece).unwrap();
        sent += piece.len() as u64;
        peak = peak.max(resident(&child));
    }
    drop(input);
    child.wait().unwrap();
    let mib = peak as f64 / 1024.0;
    Figure {
        what: format!("a stream of {} GB [MiB resident]", sent / 1_000_000_000),
        reached: format!("{mib:.1}"),
        wanted: "<= 64".to_owned(),
        met: mib <= 64.0,
    }
}

/// KiB.
fn resident(child: &Child) -> u64 {
    let status =
        std::fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap_or_default();
    let line = status.lines().find(|line| line.starts_with("VmHWM:"));
    line.and_then(|line| line.split_whitespace().nth(1)?.parse().ok()).unwrap_or(0)
}

fn short() -> Figure {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("short.log");
    let mut log = quiet(10_000);
    log.extend_from_slice(b"RuntimeError: CUDA error: an illegal memory access was encountered\n");
    std::fs::write(&path, log).unwrap();
    let mut times: Vec<Duration> = (0..21)
        .map(|_| {
            let start = Instant::now();
            gputop().arg(&path).status().unwrap();
            start.elapsed()
        })
        .collect();
    times.sort();
    let ms = times[times.len() / 2].as_secs_f64() * 1e3;
    Figure {
        what: "a log of 10 KB, start to end [ms]".to_owned(),
        reached: format!("{ms:.1}"),
        wanted: "<= 30".to_owned(),
        met: ms <= 30.0,
    }
}
