//! Resource usage of a process over time: resident memory, descriptors and threads.

use std::fs;

/// The fraction of the run, from its start, that counts as warm-up.
const WARM_UP: f64 = 0.4;
/// Start of the final phase, whose median is compared with the warm-up.
const END: f64 = 0.75;

/// Each quantity with its unit, and the allowed growth after the warm-up.
const QUANTITIES: [(&str, u64); 3] =
    [("resident KiB", 12 << 10), ("descriptors", 6), ("threads", 3)];

/// A process and its samples.
pub struct Watched {
    pub name: &'static str,
    pid: u32,
    /// Progress from 0 to 1, and the value of each quantity.
    samples: Vec<(f64, [u64; 3])>,
    has_exited: bool,
}

impl Watched {
    pub fn new(name: &'static str, pid: u32) -> Self {
        Self { name, pid, samples: Vec::new(), has_exited: false }
    }

    /// Adds a sample.
    pub fn sample(&mut self, progress: f64) {
        match self.measure() {
            Some(sample) => self.samples.push((progress, sample)),
            None => self.has_exited = true,
        }
    }

    fn measure(&self) -> Option<[u64; 3]> {
        let folder = format!("/proc/{}", self.pid);
        let status = fs::read_to_string(format!("{folder}/status")).ok()?;
        let field = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name))?;
            line.split_whitespace().next()?.parse().ok()
        };
        let descriptors = fs::read_dir(format!("{folder}/fd")).ok()?.count();
        Some([field("VmRSS:")?, descriptors as u64, field("Threads:")?])
    }

    /// Returns the median and the maximum of a quantity between two points of progress.
    fn over(&self, quantity: usize, from: f64, to: f64) -> (u64, u64) {
        let samples = self.samples.iter();
        let part = samples.filter(|(at, _)| (from..to).contains(at));
        let mut values: Vec<u64> = part.map(|(_, sample)| sample[quantity]).collect();
        values.sort_unstable();
        let median = values.get(values.len() / 2).copied();
        (median.unwrap_or(0), values.last().copied().unwrap_or(0))
    }
}

/// Prints the usage of each process. Returns an error for each quantity that grew.
pub fn report(watched: &[Watched]) -> Vec<String> {
    let mut faults = Vec::new();
    println!("{:<18} {:<13} {:>10} {:>10} {:>10}", "process", "quantity", "warm", "end", "maximum");
    for process in watched {
        for (number, (quantity, allowed)) in QUANTITIES.into_iter().enumerate() {
            let (_, warm) = process.over(number, WARM_UP / 2.0, WARM_UP);
            let (end, _) = process.over(number, END, f64::INFINITY);
            let (_, maximum) = process.over(number, 0.0, f64::INFINITY);
            let name = process.name;
            println!("{name:<18} {quantity:<13} {warm:>10} {end:>10} {maximum:>10}");
            if end > warm + warm / 10 + allowed {
                faults.push(format!("{quantity} of the {name} grew from {warm} to {end}"));
            }
        }
        if process.has_exited || process.samples.is_empty() {
            faults.push(format!("the {} exited unexpectedly", process.name));
        }
    }
    faults
}
