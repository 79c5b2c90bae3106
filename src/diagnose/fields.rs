//! What a captured piece of text is, told by the name of its group: sizes become bytes, ordinals numbers.
//!
//! `2.00 GiB` in PyTorch's words is 2 x 2^30 (`format_size` in CUDACachingAllocator.cpp: binary units, two decimals).
//! A figure whose unit is ambiguous is left out rather than guessed; so is one that does not parse.

use serde_json::{Map, Value};

use crate::model::incident::Fields;

/// The fields of one match, by name.
pub type FieldMap = Map<String, Value>;

/// Groups that are read as whole numbers.
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

/// The value of `text` under the name `name`; `None` where it is not what the name says.
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

/// Bytes; binary units whatever their spelling, since what runs on GPUs prints those.
#[must_use]
pub fn size(text: &str) -> Option<u64> {
    let digits = text
        .find(|c: char| !(c.is_ascii_digit() || c == '.' || c == ','))
        .unwrap_or(text.len());
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
    // Beyond 2^63 it is no size but a failed subtraction.
    (bytes < 9.2e18).then_some(bytes as u64)
}

fn number(text: &str) -> Option<i64> {
    text.replace(',', "").parse().ok()
}

/// `[3,0,0]` or `3,0,0`.
fn coordinates(text: &str) -> Option<Value> {
    let inner = text.trim_matches(|c| "[]() ".contains(c));
    let parts: Option<Vec<u32>> = inner.split(',').map(|p| p.trim().parse().ok()).collect();
    let parts = parts?;
    (parts.len() == 3).then(|| Value::from(parts))
}

/// One line of what was wrapped over several.
fn unwrapped(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// The typed fields; what has no name there is kept beside. A value of another kind costs its own field only.
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
    fn sizes_are_binary_and_absurd_ones_are_left_out() {
        assert_eq!(size("2.00 GiB"), Some(2 << 30));
        assert_eq!(size("17179869184.00 GiB"), None);
        assert_eq!(size("0 bytes"), Some(0));
        assert_eq!(size("31,457,280 bytes"), Some(31_457_280));
        assert_eq!(size("512"), Some(512));
        assert_eq!(size("12 parsecs"), None);
    }

    #[test]
    fn a_group_is_what_its_name_says() {
        assert_eq!(read("rank", "3"), Some(Value::from(3)));
        assert_eq!(read("rank", "three"), None);
        assert_eq!(
            read("block", "[3,0,0]"),
            Some(Value::from(vec![3_u32, 0, 0]))
        );
        assert_eq!(
            read("status", " CUBLAS_STATUS_\n"),
            Some(Value::from("CUBLAS_STATUS_"))
        );
    }

    #[test]
    fn a_figure_that_cannot_be_costs_no_other() {
        let mut found = FieldMap::new();
        found.insert("gpu_index".into(), Value::from(-1));
        found.insert("free_bytes".into(), Value::from(5));
        let fields = typed(&found);
        assert_eq!((fields.gpu_index, fields.free_bytes), (None, Some(5)));
    }
}
