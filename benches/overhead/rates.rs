//! Call rates, computed from the call log of one program and passed to the loop in a file.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::time::Duration;

use crate::fake_nvml::Calls;

/// Calls per second over all GPUs, by their names in the fake NVML.
#[derive(Default)]
pub struct Rates(pub BTreeMap<String, f64>);

impl Rates {
    #[allow(clippy::cast_precision_loss)]
    pub fn between(before: &Calls, after: &Calls, elapsed: Duration) -> Self {
        let mut rates = Self::default();
        for (name, ..) in after.iter() {
            let calls = after.of(name) - before.of(name);
            if calls > 0 {
                let rate = calls as f64 / elapsed.as_secs_f64();
                rates.0.insert(name.to_owned(), rate);
            }
        }
        rates
    }

    pub fn write(&self, file: &Path) {
        let mut text = String::new();
        for (name, rate) in &self.0 {
            writeln!(text, "{name} {rate}").unwrap();
        }
        fs::write(file, text).unwrap();
    }

    pub fn read(file: &Path) -> Self {
        let text = fs::read_to_string(file).unwrap();
        let rates = text.lines().map(|line| {
            let (name, rate) = line.split_once(' ').unwrap();
            (name.to_owned(), rate.parse().unwrap())
        });
        Self(rates.collect())
    }
}
