//! Fills `{field}` placeholders in sentences with the fields of a match. `{field|WORD}` becomes `WORD` if the field is
//! unknown; `assets/remedies.toml` explains how to choose a value for each such word.

use gputop_model::units::Bytes;
use serde_json::Value;

use super::fields::FieldMap;

/// Returns `template` with its fields filled in, or `None` if a field without a fallback word is unknown.
#[must_use]
pub fn fill(template: &str, found: &FieldMap) -> Option<String> {
    replaced(template, |name, fallback| match found.get(name) {
        Some(value) => Some(shown(name, value)),
        None => fallback.map(str::to_owned),
    })
}

/// Returns `template` without any log: with the fallback of each field, or else its name in capitals.
#[must_use]
pub fn general(template: &str) -> String {
    replaced(template, |name, fallback| {
        Some(fallback.map_or_else(|| name.to_uppercase(), str::to_owned))
    })
    .unwrap_or_default()
}

/// Replaces each placeholder with the value that `value` returns for its name and fallback.
fn replaced(
    template: &str,
    value: impl Fn(&str, Option<&str>) -> Option<String>,
) -> Option<String> {
    let mut out = String::with_capacity(template.len() + 16);
    let mut rest = template;
    while let Some(open) = rest.find('{') {
        let Some(close) = rest[open..].find('}').map(|c| open + c) else {
            break;
        };
        let (name, fallback) = match rest[open + 1..close].split_once('|') {
            Some((name, fallback)) => (name, Some(fallback)),
            None => (&rest[open + 1..close], None),
        };
        out.push_str(&rest[..open]);
        if is_name(name) {
            out.push_str(&value(name, fallback)?);
        } else {
            out.push_str(&rest[open..=close]);
        }
        rest = &rest[close + 1..];
    }
    out.push_str(rest);
    Some(out)
}

/// Returns the first template whose fields are all known, with its fields filled in.
#[must_use]
pub fn first(templates: &[String], found: &FieldMap) -> String {
    templates.iter().find_map(|template| fill(template, found)).unwrap_or_default()
}

/// Returns true if `name` is a field name. Other text in braces, as in `{"a": 1}` or `${HOME}`, is not replaced.
fn is_name(name: &str) -> bool {
    !name.is_empty()
        && name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_')
}

/// Formats a field's value for display, with units for sizes and durations.
#[must_use]
pub fn shown(name: &str, value: &Value) -> String {
    match value {
        Value::Number(n) if name.ends_with("_bytes") => {
            n.as_u64().map_or_else(|| n.to_string(), |b| Bytes(b).to_string())
        }
        Value::Number(n) if name.ends_with("_ms") => {
            n.as_u64().map_or_else(|| n.to_string(), duration)
        }
        Value::String(s) => s.clone(),
        other => other.to_string(),
    }
}

/// Formats a rounded duration: `8 s`, `30 min`, `6.7 h`.
fn duration(ms: u64) -> String {
    match ms {
        0..1_000 => format!("{ms} ms"),
        1_000..180_000 => format!("{} s", ms / 1000),
        180_000..10_800_000 => format!("{} min", ms / 60_000),
        _ => format!("{}.{} h", ms / 3_600_000, ms % 3_600_000 / 360_000),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_general_text_has_fallbacks_and_names_in_capitals() {
        let template = "rank {rank} was {place|outside} {\"a\": 1}";
        assert_eq!(general(template), "rank RANK was outside {\"a\": 1}");
    }

    #[test]
    fn skips_sentences_with_unknown_fields() {
        let mut found = FieldMap::new();
        found.insert("requested_bytes".into(), Value::from(2_u64 << 30));
        let templates = [
            "{requested_bytes} on GPU {gpu_index}".to_owned(),
            "{requested_bytes} requested, {\"a\": 1}".to_owned(),
        ];
        assert_eq!(first(&templates, &found), "2.00 GiB requested, {\"a\": 1}");
        let known = fill("{requested_bytes|SIZE} on {interface|INTERFACE}", &found);
        assert_eq!(known.as_deref(), Some("2.00 GiB on INTERFACE"));
    }
}
