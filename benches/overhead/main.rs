//! Measures the cost of gputop while it watches: the release binary on a terminal of 200x50, on the fake NVML with the
//! latencies of 8 real H200s, compared with a bare loop that makes the same calls and draws nothing.
//!
//! ```text
//! cargo bench --bench overhead                        # 30 s each
//! cargo bench --bench overhead -- --seconds 10 --strict
//! ```
//!
//! The loop makes the same calls as gputop, at the rates that were measured. So the table shows the cost of everything
//! in gputop except the calls. It does not show whether gputop's call schedule is a good one.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::print_stdout, clippy::print_stderr)]

mod bare;
mod busy;
mod keys;
mod measure;
mod rates;
mod scene;
mod table;

// Modules shared with the tests.
#[path = "../../tests/it/support/deadline.rs"]
#[allow(dead_code)]
mod deadline;
#[path = "../../tests/it/support/fake_nvml.rs"]
mod fake_nvml;
#[path = "../../tests/it/support/terminal.rs"]
mod terminal;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;

use crate::table::Table;

#[derive(Parser)]
struct Args {
    /// Duration of each measurement in seconds
    #[arg(long, default_value_t = 30)]
    seconds: u64,
    /// Exit with status 1 when a target is missed
    #[arg(long)]
    strict: bool,
    /// Measure this gputop instead, such as an older build
    #[arg(long, default_value = env!("CARGO_BIN_EXE_gputop"))]
    program: PathBuf,
    /// Run the bare loop, with the rates in this file
    #[arg(long, hide = true)]
    bare_loop: Option<PathBuf>,
    /// Flag that `cargo bench` passes
    #[arg(long, hide = true)]
    bench: bool,
}

fn main() -> ExitCode {
    let args = Args::parse();
    if let Some(rates) = args.bare_loop {
        bare::run(&rates);
    }
    busy::build_fake_nvml();
    let mut table = Table::default();
    for processes in [8, 64] {
        let seconds = Duration::from_secs(args.seconds);
        scene::measure(&args.program, processes, seconds, &mut table);
    }
    println!("{table}");
    match args.strict && table.missed() {
        true => ExitCode::FAILURE,
        false => ExitCode::SUCCESS,
    }
}
