//! Two tables beside the cards: device-side assertions by file and condition, Xids by number.
//!
//! A row names its card and says in clauses what the card's sentences are filled with.

use serde::Deserialize;
use serde_json::Value;

use super::fields::FieldMap;

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
#[serde(default, deny_unknown_fields)]
struct AssertionFile {
    assertion: Vec<Assertion>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct XidFile {
    xid: Vec<Xids>,
}

/// Both tables.
#[derive(Debug, Clone, Default)]
pub struct Tables {
    pub assertions: Vec<Assertion>,
    pub xids: Vec<Xids>,
}

impl Tables {
    /// The tables of this build.
    ///
    /// # Errors
    /// None in a build whose tests passed.
    pub fn embedded() -> Result<Self, toml::de::Error> {
        Self::parse(ASSERTIONS, XIDS)
    }

    /// # Errors
    /// Where one of the two files is not a table.
    pub fn parse(assertions: &str, xids: &str) -> Result<Self, toml::de::Error> {
        let assertions: AssertionFile = toml::from_str(assertions)?;
        let xids: XidFile = toml::from_str(xids)?;
        Ok(Self {
            assertions: assertions.assertion,
            xids: xids.xid,
        })
    }

    /// Adds what is known about the assertion or the Xid in `found`; the card that the row names.
    pub fn look_up(&self, found: &mut FieldMap) -> Option<&str> {
        if let Some(row) = self.assertion(found) {
            set(found, "assertion_meaning", &row.meaning);
            set(found, "assertion_mistake", &row.mistake);
            set(found, "assertion_check", &row.check);
            return Some(&row.card);
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
    pub fn xid(&self, code: u64) -> Option<&Xids> {
        self.xids.iter().find(|row| row.codes.contains(&code))
    }

    fn assertion(&self, found: &FieldMap) -> Option<&Assertion> {
        let printed = bare(found.get("assertion")?.as_str()?);
        let file = found
            .get("kernel_file")
            .and_then(Value::as_str)
            .map(base_name);
        self.assertions.iter().find(|row| {
            let same_file = row
                .file
                .as_deref()
                .is_none_or(|wanted| file == Some(wanted));
            same_file && printed.contains(&bare(&row.text))
        })
    }
}

/// `IndexKernel.cu` of `../aten/src/ATen/native/cuda/IndexKernel.cu` and of a Windows path.
#[must_use]
pub fn base_name(path: &str) -> &str {
    path.rsplit(['/', '\\']).next().unwrap_or(path)
}

fn bare(text: &str) -> String {
    text.split_whitespace().collect()
}

fn set(found: &mut FieldMap, name: &str, value: &str) {
    found.insert(name.to_owned(), Value::from(value));
}
