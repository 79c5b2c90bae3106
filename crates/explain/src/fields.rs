//! Converts the text captured by card expressions to values. The name of the regex group determines the value's type:
//! sizes become bytes, and ordinals become numbers.
//!
//! PyTorch prints `2.00 GiB` for 2 x 2^30 bytes (`format_size` in CUDACachingAllocator.cpp: binary units, two
//! decimals). Numbers with an ambiguous unit and numbers that do not parse are omitted.

use gputop_model::incident::Fields;
use serde_json::{Map, Value};

/// Fields of a card's match, by name.
pub type FieldMap = Map<String, Value>;

/// Regex groups whose values are integers.
const NUMBERS: &[&str] = &[
    "gpu_index",
    "cuda_error_code",
    "kernel_line",
    "source_line",
    "python_line",
    "xid",
    "rank",
    "pid",
    "exit_code",
];

/// Parses `text` as the type implied by the name of the regex group. Returns `None` if it does not parse.
#[must_use]
pub fn read(name: &str, text: &str) -> Option<Value> {
    let text = text.trim();
    if text.is_empty() {
        return None;
    }
    if name.ends_with("_bytes") {
        return size(text).map(Value::from);
    }
    if name.ends_with("_kb") {
        return number(text).map(Value::from);
    }
    if NUMBERS.contains(&name) || name.ends_with("_ms") || name.ends_with("_count") {
        return number(text).map(Value::from);
    }
    match name {
        "block" | "thread" => coordinates(text),
        _ => Some(Value::from(unwrapped(text))),
    }
}

/// Parses a size and returns it in bytes. Treats all units as binary, because GPU libraries use binary units even if
/// they print `GB`.
#[must_use]
pub fn size(text: &str) -> Option<u64> {
    let digits =
        text.find(|c: char| !(c.is_ascii_digit() || c == '.' || c == ',')).unwrap_or(text.len());
    let figure: f64 = text[..digits].replace(',', "").parse().ok()?;
    let unit = match text[digits..].trim_start().as_bytes().first() {
        None | Some(b'b' | b'B') => 1.0,
        Some(b'k' | b'K') => 1024.0,
        Some(b'M') => 1024.0 * 1024.0,
        Some(b'G') => 1024.0 * 1024.0 * 1024.0,
        Some(b'T') => 1024.0 * 1024.0 * 1024.0 * 1024.0,
        _ => return None,
    };
    let bytes = (figure * unit).round();
    // Drop sizes of 2^63 and above, which are the result of a subtraction that underflowed.
    (bytes < 9.2e18).then_some(bytes as u64)
}

fn number(text: &str) -> Option<i64> {
    text.replace(',', "").parse().ok()
}

/// Parses CUDA coordinates: `[3,0,0]` or `3,0,0`.
fn coordinates(text: &str) -> Option<Value> {
    let inner = text.trim_matches(|c| "[]() ".contains(c));
    let parts = inner.split(',').map(|p| p.trim().parse().ok()).collect::<Option<Vec<u32>>>()?;
    (parts.len() == 3).then(|| Value::from(parts))
}

fn unwrapped(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Converts the fields of a match to typed fields. Unknown names are stored in `more`. A value of the wrong type is
/// dropped without affecting other fields.
#[must_use]
pub fn typed(found: &FieldMap) -> Fields {
    let fits = |name: &str, value: &Value| {
        let alone = FieldMap::from_iter([(name.to_owned(), value.clone())]);
        serde_json::from_value::<Fields>(Value::Object(alone)).is_ok()
    };
    let fitting = found.iter().filter(|(name, value)| fits(name, value));
    let fitting: FieldMap = fitting.map(|(n, v)| (n.clone(), v.clone())).collect();
    serde_json::from_value(Value::Object(fitting)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_binary_and_absurd_sizes_are_dropped() {
        assert_eq!(size("2.00 GiB"), Some(2 << 30));
        assert_eq!(size("17179869184.00 GiB"), None);
        assert_eq!(size("0 bytes"), Some(0));
        assert_eq!(size("31,457,280 bytes"), Some(31_457_280));
        assert_eq!(size("512"), Some(512));
        assert_eq!(size("12 parsecs"), None);
    }

    #[test]
    fn the_name_of_a_group_determines_its_type() {
        assert_eq!(read("rank", "3"), Some(Value::from(3)));
        assert_eq!(read("rank", "three"), None);
        assert_eq!(read("block", "[3,0,0]"), Some(Value::from(vec![3_u32, 0, 0])));
        assert_eq!(read("status", " CUBLAS_STATUS_\n"), Some(Value::from("CUBLAS_STATUS_")));
    }

    #[test]
    fn an_invalid_value_does_not_affect_other_fields() {
        let mut found = FieldMap::new();
        found.insert("gpu_index".into(), Value::from(-1));
        found.insert("free_bytes".into(), Value::from(5));
        let fields = typed(&found);
        assert_eq!((fields.gpu_index, fields.free_bytes), (None, Some(5)));
    }
}
