//! A machine of 8 busy GPUs with real processes, on the fake NVML with the latencies of real H200s.

use std::process::{Child, Command};

pub const GPUS: usize = 8;

/// Returns a scenario of 8 busy GPUs with realistic latencies, and processes whose memory changes every 10 seconds.
pub fn scenario(sleepers: &Sleepers, hanging: Option<usize>) -> String {
    let mut text = String::from("latency = \"h200\"\nwobble = true\nchurn = 10.0\n");
    for gpu in 0..GPUS {
        text += "[[gpu]]\nsm = 90\nmemory_bandwidth = 55\npower = 600000\ntemperature = 60\nthrottle = 4\n";
        text += match hanging == Some(gpu) {
            true => "hang = [\"*\"]\n",
            false => "",
        };
    }
    let on_each = sleepers.0.len().div_ceil(GPUS);
    let used = 100 / on_each;
    for (i, sleeper) in sleepers.0.iter().enumerate() {
        let (pid, gpu) = (sleeper.0.id(), i % GPUS);
        let sm = 80 / on_each;
        text += &format!(
            "[[process]]\npid = {pid}\ngpu = {gpu}\nused = \"{used} GiB\"\nsm = {sm}\nmem = 5\n"
        );
    }
    text
}

/// Real processes, so that `/proc` has the data that gputop reads.
pub struct Sleepers(Vec<Reaped>);

pub struct Reaped(pub Child);

impl Drop for Reaped {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Sleepers {
    pub fn start(n: usize) -> Self {
        let sleeper = |_| Reaped(Command::new("sleep").arg("100000").spawn().unwrap());
        Self((0..n).map(sleeper).collect())
    }
}

/// Returns true if the screen shows all GPUs: a header with `SM`, and for each GPU a row that begins with its index and
/// contains a number.
pub fn is_full(screen: &vt100::Screen) -> bool {
    let text = screen.contents();
    text.contains("SM") && (0..GPUS).all(|gpu| text.lines().any(|line| is_row(line, gpu)))
}

/// Matches `  3  ####....  118.6  21.8 …`, with or without a border or `GPU` before the index.
fn is_row(line: &str, gpu: usize) -> bool {
    let line = line.trim_start_matches(|c: char| !c.is_alphanumeric());
    let mut words = line.trim_start_matches("GPU").split_whitespace();
    words.next() == Some(&gpu.to_string())
        && words.any(|word| word.starts_with(|c: char| c.is_ascii_digit()))
}

/// Builds the fake NVML, because `cargo bench` builds no examples.
pub fn build_fake_nvml() {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let built = Command::new(cargo)
        .args(["build", "--quiet", "--release", "--example", "fake_nvml"])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .status();
    assert!(
        built.is_ok_and(|status| status.success()),
        "cargo build --release --example fake_nvml"
    );
}
