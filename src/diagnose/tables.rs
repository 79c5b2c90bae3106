//! Two tables beside the cards: device-side assertions by file and condition, Xids by number.
//!
//! A row names its card and says in clauses what the card's sentences are filled with.

use std::sync::OnceLock;

use serde::Deserialize;
use serde_json::Value;

use super::fields::Found;

const ASSERTIONS: &str = include_str!("../../assets/assertions.toml");
const XIDS: &str = include_str!("../../assets/xids.toml");

/// One check in a kernel's source (PyTorch's unless it says otherwise).
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Assertion {
    /// The base name of the file; any file when it is left out.
    #[serde(default)]
    pub file: Option<String>,
    /// Contained in the printed condition, white space aside.
    pub text: String,
    pub card: String,
    /// What the check says about the data, a clause.
    pub meaning: String,
    /// What it usually comes from, a clause.
    pub mistake: String,
    /// A line of Python to put before the failing one.
    pub check: String,
}

/// What one or several Xid numbers stand for.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Xids {
    pub codes: Vec<u64>,
    pub card: String,
    /// A clause.
    pub meaning: String,
    /// What the vendor's catalogue asks for at once, a clause.
    pub now: String,
    /// What it asks for after that.
    #[serde(default)]
    pub then: Option<String>,
    /// Whose fault it usually is: `application`, `hardware`, `driver`, …
    pub side: String,
}

#[derive(Debug, Default, Deserialize)]
struct AssertionFile {
    #[serde(default)]
    assertion: Vec<Assertion>,
}

#[derive(Debug, Default, Deserialize)]
struct XidFile {
    #[serde(default)]
    xid: Vec<Xids>,
}

/// All known assertions. Empty only in a broken build, which the tests refuse.
#[must_use]
pub fn assertions() -> &'static [Assertion] {
    static TABLE: OnceLock<AssertionFile> = OnceLock::new();
    &TABLE
        .get_or_init(|| toml::from_str(ASSERTIONS).unwrap_or_default())
        .assertion
}

/// All known Xids.
#[must_use]
pub fn xids() -> &'static [Xids] {
    static TABLE: OnceLock<XidFile> = OnceLock::new();
    &TABLE
        .get_or_init(|| toml::from_str(XIDS).unwrap_or_default())
        .xid
}

/// Adds what the tables know about the assertion or the Xid in `found`; the card that a row names.
pub fn look_up(found: &mut Found) -> Option<&'static str> {
    if let Some(row) = assertion(found) {
        set(found, "assertion_meaning", &row.meaning);
        set(found, "assertion_mistake", &row.mistake);
        set(found, "assertion_check", &row.check);
        return Some(&row.card);
    }
    let code = found.get("xid")?.as_u64()?;
    let row = xids().iter().find(|row| row.codes.contains(&code))?;
    set(found, "xid_meaning", &row.meaning);
    set(found, "xid_now", &row.now);
    set(found, "xid_side", &row.side);
    if let Some(then) = &row.then {
        set(found, "xid_then", then);
    }
    Some(&row.card)
}

fn assertion(found: &Found) -> Option<&'static Assertion> {
    let printed = bare(found.get("assertion")?.as_str()?);
    let file = found
        .get("kernel_file")
        .and_then(Value::as_str)
        .map(base_name);
    assertions().iter().find(|row| {
        let same_file = row
            .file
            .as_deref()
            .is_none_or(|wanted| file == Some(wanted));
        same_file && printed.contains(&bare(&row.text))
    })
}

/// `IndexKernel.cu` of `../aten/src/ATen/native/cuda/IndexKernel.cu` and of a Windows path.
#[must_use]
pub fn base_name(path: &str) -> &str {
    path.rsplit(['/', '\\']).next().unwrap_or(path)
}

fn bare(text: &str) -> String {
    text.split_whitespace().collect()
}

fn set(found: &mut Found, name: &str, value: &str) {
    found.insert(name.to_owned(), Value::from(value));
}
