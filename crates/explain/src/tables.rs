//! Parses two tables: device-side assertions, looked up by file and condition, and Xids, looked up by number.
//!
//! A table row names its card and contains phrases to insert into the card's sentences.

use serde::Deserialize;
use serde_json::Value;

use super::card::{CardError, from_toml};
use super::fields::FieldMap;

/// A check in the source of a GPU kernel, from PyTorch unless stated otherwise.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Assertion {
    /// Base name of the kernel's source file, or `None` for any file.
    #[serde(default)]
    pub file: Option<String>,
    /// Part of the condition that the GPU kernel prints. White space is ignored.
    pub text: String,
    pub card: String,
    /// Meaning of the failed check, as a phrase.
    pub meaning: String,
    /// Usual cause of the failed check, as a phrase.
    pub mistake: String,
    /// Line of Python code to insert before the failing line.
    pub check: String,
}

/// One or more Xid numbers with the same meaning.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct XidMeaning {
    pub codes: Vec<u64>,
    pub card: String,
    /// Meaning of the Xid, as a clause.
    pub meaning: String,
    /// Immediate action from the vendor's catalogue, as a phrase.
    pub now: String,
    /// Follow-up action from the vendor's catalogue.
    #[serde(default)]
    pub then: Option<String>,
    /// Usual origin of the fault: `application`, `hardware`, `driver`, …
    pub side: String,
}

/// The tables of assertions and Xids.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Tables {
    #[serde(rename = "assertion")]
    pub assertions: Vec<Assertion>,
    #[serde(rename = "xid")]
    pub xids: Vec<XidMeaning>,
}

impl Tables {
    /// Parses the text of both table files.
    pub fn parse(toml: &str) -> Result<Self, CardError> {
        from_toml(&toml.parse()?)
    }

    /// Adds the phrases for the assertion or Xid in `found`. Returns the ID of the card that the table row names.
    pub fn look_up(&self, found: &mut FieldMap) -> Option<&str> {
        if let Some(row) = self.assertion(found) {
            set(found, "assertion_meaning", &row.meaning);
            set(found, "assertion_mistake", &row.mistake);
            set(found, "assertion_check", &row.check);
            return Some(&row.card);
        }
        // Prefer the earlier Xid: when the driver tears down the channels (Xid 45), it adds "caused by previous Xid
        // 149".
        let earlier = found.get("earlier_xid").and_then(Value::as_str);
        let earlier = earlier.and_then(|code| code.parse().ok());
        if let Some(earlier) = earlier.filter(|&code| self.xid(code).is_some()) {
            found.insert("xid".to_owned(), earlier.into());
        }
        let row = self.xid(found.get("xid")?.as_u64()?)?;
        set(found, "xid_meaning", &row.meaning);
        set(found, "xid_now", &row.now);
        set(found, "xid_side", &row.side);
        if let Some(then) = &row.then {
            set(found, "xid_then", then);
        }
        Some(&row.card)
    }

    #[must_use]
    pub fn xid(&self, code: u64) -> Option<&XidMeaning> {
        self.xids.iter().find(|row| row.codes.contains(&code))
    }

    fn assertion(&self, found: &FieldMap) -> Option<&Assertion> {
        let printed = without_blanks(found.get("assertion")?.as_str()?);
        let file = found.get("kernel_file").and_then(Value::as_str).map(base_name);
        self.assertions.iter().find(|row| {
            let same_file = row.file.as_deref().is_none_or(|wanted| file == Some(wanted));
            same_file && printed.contains(&without_blanks(&row.text))
        })
    }
}

/// Returns a Unix or Windows path's base name: `IndexKernel.cu` for `../aten/src/ATen/native/cuda/IndexKernel.cu`.
#[must_use]
pub fn base_name(path: &str) -> &str {
    path.rsplit(['/', '\\']).next().unwrap_or(path)
}

fn without_blanks(text: &str) -> String {
    text.split_whitespace().collect()
}

fn set(found: &mut FieldMap, name: &str, value: &str) {
    found.insert(name.to_owned(), Value::from(value));
}
