//! Allocator settings that a program was started with (`PYTORCH_CUDA_ALLOC_CONF`).
//!
//! Example: `max_split_size_mb:128,expandable_segments:True`. Only the options that affect memory use are read. A
//! program may change any of them later (`_set_allocator_settings`, `set_per_process_memory_fraction`), or set the
//! variable itself before it imports torch. gputop sees neither change, so an option that is missing here may still be
//! on.

use gputop_model::nearest_name::instead_of;
use gputop_model::units::Bytes;

use super::LARGE_SEGMENT;
use super::rules::{NEWEST, Roundup, Rules, TorchVersion};

#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Config {
    pub max_split: Option<Bytes>,
    /// Fraction of the device's memory that the process may reserve (`per_process_memory_fraction`). Available from
    /// torch 2.10 on; earlier releases reject the option at startup.
    pub memory_fraction: Option<f64>,
    pub expandable: Option<bool>,
    pub garbage_collection_threshold: Option<f64>,
    pub roundup: Option<Roundup>,
    pub non_split_rounding: Option<Bytes>,
    pub large_segment: Option<Bytes>,
}

/// All allocator options of all torch releases, each with the first release that supports it.
const OPTIONS: &[(&str, TorchVersion)] = &[
    ("max_split_size_mb", (1, 10)),
    ("garbage_collection_threshold", (1, 12)),
    ("roundup_power2_divisions", (1, 12)),
    ("backend", (1, 13)),
    ("roundup_bypass_threshold_mb", (1, 13)),
    ("expandable_segments", (2, 1)),
    ("release_lock_on_cudamalloc", (2, 2)),
    ("pinned_use_cuda_host_register", (2, 2)),
    ("pinned_num_register_threads", (2, 2)),
    ("pinned_use_background_threads", (2, 6)),
    ("max_non_split_rounding_mb", (2, 6)),
    ("graph_capture_record_stream_reuse", (2, 9)),
    ("per_process_memory_fraction", (2, 10)),
    ("pinned_reserve_segment_size_mb", (2, 10)),
    ("large_segment_size_mb", (2, 11)),
    ("throw_on_cudamalloc_oom", (2, 12)),
    ("pinned_free_catch_all", (2, 12)),
    ("expandable_segments_reserve", (2, 15)),
    ("expandable_segments_reserve_by_class", (2, 15)),
];

impl Config {
    /// Parses a configuration and skips unknown options.
    pub fn parse(text: &str) -> Self {
        let mut config = Self::default();
        for (key, value) in options(text).filter_map(|(_, option)| option) {
            config.take(key, value, NEWEST);
        }
        config
    }

    /// Returns the allocator rules of a torch release with these options applied.
    pub fn rules(&self, torch: TorchVersion) -> Rules {
        Rules {
            torch,
            expandable: self.expandable.unwrap_or(false) && torch >= (2, 1),
            max_split: self.max_split,
            non_split_rounding: self.non_split_rounding.unwrap_or(LARGE_SEGMENT),
            garbage_collection_threshold: self.garbage_collection_threshold.unwrap_or(0.0),
            roundup: self.roundup.unwrap_or_default(),
            large_segment: self.large_segment.unwrap_or(LARGE_SEGMENT),
            memory_fraction: self.memory_fraction,
        }
    }

    /// Parses a setting given by the user. Returns an error message if the torch release does not support it.
    pub fn read(text: &str, torch: TorchVersion) -> Result<Self, String> {
        let mut config = Self::default();
        for (part, option) in options(text) {
            let Some((key, value)) = option else {
                return Err(format!("`{part}` is not an option: write options as `key:value`"));
            };
            let Some((_, since)) = OPTIONS.iter().find(|(name, _)| *name == key) else {
                let names = OPTIONS.iter().map(|(name, _)| *name);
                return Err(format!("unknown option `{key}`: {}", instead_of(key, names)));
            };
            if key == "backend" && value != "native" {
                return Err(format!(
                    "backend `{value}` cannot be simulated: only PyTorch's native allocator can"
                ));
            }
            if torch < *since {
                return Err(format!(
                    "`{key}` requires torch {}.{}, but this is {}.{}",
                    since.0, since.1, torch.0, torch.1
                ));
            }
            if !config.take(key, value, torch) {
                return Err(format!(
                    "`{value}` is not a valid value for `{key}`: expected {}",
                    valid_values(key)
                ));
            }
        }
        Ok(config)
    }

    /// Applies one option. Returns false if the value is invalid. Options that do not affect memory use are always
    /// valid.
    fn take(&mut self, key: &str, value: &str, torch: TorchVersion) -> bool {
        fn put<T>(into: &mut Option<T>, value: Option<T>) -> bool {
            *into = value;
            into.is_some()
        }
        match key {
            "max_split_size_mb" => {
                let size = mib(value).filter(|size| *size > LARGE_SEGMENT);
                put(&mut self.max_split, size)
            }
            "max_non_split_rounding_mb" => put(&mut self.non_split_rounding, mib(value)),
            "large_segment_size_mb" => put(&mut self.large_segment, mib(value)),
            "per_process_memory_fraction" => put(&mut self.memory_fraction, fraction(value)),
            "garbage_collection_threshold" => {
                put(&mut self.garbage_collection_threshold, fraction(value))
            }
            "expandable_segments" => put(&mut self.expandable, truth(value)),
            "roundup_power2_divisions" => put(&mut self.roundup, roundup(value, torch)),
            _ => true,
        }
    }

    /// Returns the maximum reserved memory on a device with `total` bytes available to programs, or `None` if there is
    /// no limit.
    pub fn limit(&self, total: Bytes) -> Option<Bytes> {
        self.memory_fraction.map(|fraction| Bytes((total.0 as f64 * fraction) as u64))
    }
}

fn valid_values(key: &str) -> &'static str {
    match key {
        "expandable_segments" => "`True` or `False`",
        "roundup_power2_divisions" => "a power of two, or `[256:1,512:2,>:4]`",
        "per_process_memory_fraction" | "garbage_collection_threshold" => {
            "a number from 0.0 to 1.0"
        }
        "max_split_size_mb" => "a whole number of MiB above 20",
        _ => "a whole number of MiB",
    }
}

/// Splits `a:1,b:[256:1,512:2],c:x` at commas outside brackets. Returns the key and the value of each part.
fn options(text: &str) -> impl Iterator<Item = (&str, Option<(&str, &str)>)> {
    let mut depth = 0_i32;
    let parts = text.split(move |c| {
        depth += i32::from(c == '[') - i32::from(c == ']');
        c == ',' && depth <= 0
    });
    parts.filter(|part| !part.trim().is_empty()).map(|part| {
        let option = part.split_once(':');
        (part, option.map(|(key, value)| (key.trim(), value.trim())))
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

/// Parses `roundup_power2_divisions`: one number for all sizes, or `[256:1,512:2,>:4]` (1 from 256 MiB, 2 from 512 MiB,
/// 4 above).
fn roundup(value: &str, torch: TorchVersion) -> Option<Roundup> {
    let divisions = |text: &str| {
        let divisions = text.trim().parse::<u32>().ok()?;
        let off = divisions == 0 && torch >= (2, 4);
        (off || divisions.is_power_of_two()).then_some(divisions)
    };
    let Some(list) = value.strip_prefix('[') else {
        return Some(Roundup([divisions(value)?; 16]));
    };
    let mut all = [0; 16];
    let mut last = None;
    for part in list.strip_suffix(']')?.split(',') {
        let (size, value) = part.split_once(':')?;
        let value = divisions(value)?;
        if size.trim() == ">" {
            // In torch 2.9 and earlier, `>` also overrides the last listed size.
            let above = usize::from(torch >= (2, 10));
            all[last.map_or(0, |last: usize| (last + above).min(15))..].fill(value);
            continue;
        }
        let size = size.trim().parse::<u64>().ok()?;
        if !size.is_power_of_two() {
            return None;
        }
        let at = (size.ilog2() as usize).min(15);
        if last.is_none() {
            all[..at].fill(value);
        }
        all[at] = value;
        last = Some(at);
    }
    Some(Roundup(all))
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
    fn parses_relevant_options_among_others() {
        let config = Config::parse(
            "roundup_power2_divisions:[256:1,512:2,>:4], max_split_size_mb:128,\
             per_process_memory_fraction:0.5,expandable_segments:True",
        );
        assert_eq!(config.max_split, Some(Bytes::mib(128)));
        assert_eq!(config.limit(Bytes::gib(80)), Some(Bytes::gib(40)));
        assert_eq!(config.expandable, Some(true));
    }

    #[test]
    fn missing_and_invalid_options_are_unknown() {
        assert_eq!(Config::parse(""), Config::default());
        let invalid = "max_split_size_mb:many,per_process_memory_fraction:7,expandable_segments:1";
        assert_eq!(Config::parse(invalid), Config::default());
        assert_eq!(Config::default().limit(Bytes::gib(80)), None);
    }

    proptest! {
        #[test]
        fn never_panics_on_arbitrary_text(text: String) {
            let _ = Config::parse(&text);
        }
    }
}
