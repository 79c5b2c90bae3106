//! What a program was told of its allocator when it was started: `PYTORCH_CUDA_ALLOC_CONF`.
//!
//! `max_split_size_mb:128,expandable_segments:True`. Only the options that change what fits are kept. A program may
//! change each of them later (`_set_allocator_settings`, `set_per_process_memory_fraction`) or set the variable itself
//! before it imports torch: neither can be seen, so what is not said here is not known, rather than off.

use crate::model::units::Bytes;

#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Config {
    pub max_split: Option<Bytes>,
    /// Part of the device's memory that the process may reserve, by `per_process_memory_fraction`; from torch 2.10 on,
    /// earlier ones refuse to start with it.
    pub memory_fraction: Option<f64>,
    pub expandable: Option<bool>,
}

impl Config {
    /// Never fails: an option that is not understood is left out.
    pub fn parse(text: &str) -> Self {
        let mut config = Self::default();
        for (key, value) in options(text) {
            match key {
                "max_split_size_mb" => config.max_split = mib(value),
                "per_process_memory_fraction" => config.memory_fraction = fraction(value),
                "expandable_segments" => config.expandable = truth(value),
                _ => {}
            }
        }
        config
    }

    /// What may be reserved on a device with so much memory for programs; `None` without a limit.
    pub fn limit(&self, total: Bytes) -> Option<Bytes> {
        #[allow(
            clippy::cast_precision_loss,
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss
        )]
        self.memory_fraction
            .map(|fraction| Bytes((total.0 as f64 * fraction) as u64))
    }
}

/// `a:1,b:[256:1,512:2],c:x`: a comma inside brackets parts no options.
fn options(text: &str) -> impl Iterator<Item = (&str, &str)> {
    let mut depth = 0_i32;
    let parts = text.split(move |c| {
        depth += i32::from(c == '[') - i32::from(c == ']');
        c == ',' && depth <= 0
    });
    parts.filter_map(|part| {
        let (key, value) = part.split_once(':')?;
        Some((key.trim(), value.trim()))
    })
}

fn mib(value: &str) -> Option<Bytes> {
    let bytes = value.parse::<u64>().ok()?.checked_mul(Bytes::mib(1).0)?;
    Some(Bytes(bytes))
}

fn fraction(value: &str) -> Option<f64> {
    let fraction = value.parse::<f64>().ok()?;
    (0.0..=1.0).contains(&fraction).then_some(fraction)
}

fn truth(value: &str) -> Option<bool> {
    match value {
        "True" => Some(true),
        "False" => Some(false),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn options_that_matter_are_taken_from_among_the_others() {
        let config = Config::parse(
            "roundup_power2_divisions:[256:1,512:2,>:4], max_split_size_mb:128,\
             per_process_memory_fraction:0.5,expandable_segments:True",
        );
        assert_eq!(config.max_split, Some(Bytes::mib(128)));
        assert_eq!(config.limit(Bytes::gib(80)), Some(Bytes::gib(40)));
        assert_eq!(config.expandable, Some(true));
    }

    #[test]
    fn what_is_not_said_or_not_understood_is_not_known() {
        assert_eq!(Config::parse(""), Config::default());
        let foolish = "max_split_size_mb:many,per_process_memory_fraction:7,expandable_segments:1";
        assert_eq!(Config::parse(foolish), Config::default());
        assert_eq!(Config::default().limit(Bytes::gib(80)), None);
    }

    proptest! {
        #[test]
        fn no_text_makes_it_panic(text: String) {
            let _ = Config::parse(&text);
        }
    }
}
