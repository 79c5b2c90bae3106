//! Sizes: a number of bytes, `"21.5 GiB"`, or digits in quotes for numbers that exceed TOML's integers.

use serde::{Deserialize, Deserializer, de};

#[derive(Deserialize)]
#[serde(untagged)]
pub enum Form {
    Bytes(u64),
    Text(String),
}

impl Form {
    pub fn bytes(&self) -> Result<u64, String> {
        match self {
            Self::Bytes(bytes) => Ok(*bytes),
            Self::Text(text) => parse(text).ok_or_else(|| format!("{text:?} is no size")),
        }
    }
}

#[allow(clippy::cast_sign_loss, clippy::cast_precision_loss)]
fn parse(text: &str) -> Option<u64> {
    if let Ok(bytes) = text.parse() {
        return Some(bytes);
    }
    let (number, unit) = text.split_once(' ')?;
    let unit: u64 = match unit {
        "KiB" => 1 << 10,
        "MiB" => 1 << 20,
        "GiB" => 1 << 30,
        _ => return None,
    };
    let number: f64 = number.parse().ok()?;
    Some((number * unit as f64) as u64)
}

pub fn required<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    Form::deserialize(deserializer)?.bytes().map_err(de::Error::custom)
}

pub fn optional<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u64>, D::Error> {
    required(deserializer).map(Some)
}
