//! Measures the overhead of `gputop run`: for a command that does nothing, and for one that writes 100 MB to its
//! terminal.
//!
//! ```text
//! cargo bench --bench run
//! cargo bench --bench run -- --strict     # a figure that is missed is a failure
//! ```
//!
//! Runs with and without gputop alternate, so that other load on the machine affects both. The terminal interprets its
//! input, like one that displays it. A second result, with a reader that discards the output, is printed for
//! comparison.
#![allow(clippy::print_stdout, clippy::unwrap_used)]

use std::io::Read;
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use portable_pty::{CommandBuilder, PtySize, native_pty_system};

const PRODUCT: &str = env!("CARGO_BIN_EXE_gputop");
const SHORT_RUNS: usize = 101;
const LONG_RUNS: usize = 7;
/// Prints 100 MB of lines like those of a training run.
const OUTPUT: &str =
    "yes 'step 1200 loss 2.3018 lr 0.00030 tokens/s 18234 mem 41.2 GiB' | head -c 100000000";

fn main() -> ExitCode {
    let mut met = true;
    let bare = |args: &[&str]| args.iter().map(ToString::to_string).collect::<Vec<_>>();
    let watched = |args: &[&str]| bare(&[&[PRODUCT, "run", "--"], args].concat());
    let pairs = [bare(&["true"]), watched(&["true"])];
    for (where_, run) in [
        ("without a terminal", piped as fn(&[String]) -> Duration),
        ("on a terminal", |args| on_pty(args, false)),
    ] {
        let [a, b] = alternating(&pairs, SHORT_RUNS, run);
        let added = b.saturating_sub(a).as_secs_f64() * 1e3;
        let bare = a.as_secs_f64() * 1e3;
        met &=
            print_result(&format!("`true` {where_}: {bare:.1} ms bare, added"), added, 10.0, "ms");
    }
    let pairs = [bare(&["sh", "-c", OUTPUT]), watched(&["sh", "-c", OUTPUT])];
    for (what, interprets) in [("shown by a terminal", true), ("thrown away by its reader", false)]
    {
        let [a, b] = alternating(&pairs, LONG_RUNS, |args| on_pty(args, interprets));
        let slower = (b.as_secs_f64() / a.as_secs_f64() - 1.0) * 100.0;
        let text = format!("100 MB {what}: {:.2} s bare, slower by", a.as_secs_f64());
        let is_met = print_result(&text, slower, 5.0, "%");
        met &= is_met || !interprets;
    }
    let strict = std::env::args().any(|arg| arg == "--strict");
    ExitCode::from(u8::from(strict && !met))
}

fn print_result(what: &str, reached: f64, wanted: f64, unit: &str) -> bool {
    let met = reached <= wanted;
    let verdict = if met { "met" } else { "MISSED" };
    println!("{what:<56} {reached:>7.1} {unit:<2} wanted {wanted:>4.0}  {verdict}");
    met
}

/// Runs both commands alternately and returns the median time of each.
fn alternating(
    pair: &[Vec<String>; 2],
    runs: usize,
    run: impl Fn(&[String]) -> Duration,
) -> [Duration; 2] {
    let mut times = [Vec::new(), Vec::new()];
    for _ in 0..runs {
        for (args, times) in pair.iter().zip(&mut times) {
            times.push(run(args));
        }
    }
    times.map(|mut times| {
        times.sort();
        times[times.len() / 2]
    })
}

fn piped(args: &[String]) -> Duration {
    let start = Instant::now();
    let mut command = Command::new(&args[0]);
    command.args(&args[1..]).stdin(Stdio::null());
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    assert!(command.output().unwrap().status.success());
    start.elapsed()
}

fn on_pty(args: &[String], interprets: bool) -> Duration {
    let size = PtySize { rows: 50, cols: 200, pixel_width: 0, pixel_height: 0 };
    let pty = native_pty_system().openpty(size).unwrap();
    let mut reader = pty.master.try_clone_reader().unwrap();
    let mut command = CommandBuilder::new(&args[0]);
    command.args(&args[1..]);
    let start = Instant::now();
    let mut child = pty.slave.spawn_command(command).unwrap();
    drop(pty.slave);
    let mut screen = vt100::Parser::new(50.try_into().unwrap(), 200.try_into().unwrap(), 0);
    let mut piece = vec![0; 64 << 10];
    while let Ok(n @ 1..) = reader.read(&mut piece) {
        if interprets {
            screen.process(&piece[..n]);
        }
    }
    assert!(child.wait().unwrap().success());
    start.elapsed()
}
