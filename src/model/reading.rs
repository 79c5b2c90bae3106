//! A value, or the reason why there is none.
//!
//! On the wire a reading is the bare value (`42`) or `{"missing": "denied", "hint": "…"}` in its place. The reason
//! is a unit enum with a fallback, the hint a field of its own, so that a reason invented by a later version costs
//! this one number and not the frame it stands in. A value of a type this version does not expect reads as
//! `unknown` for the same reason.
//!
//! `T` is a scalar, a newtype over one, a string or a list (a sample's minimum, maximum and last, say, is a list of
//! three): a JSON object in a reading's place is always a reason.

use std::fmt;
use std::marker::PhantomData;

use serde::de::{self, IntoDeserializer, value};
use serde::{Deserialize, Deserializer, Serialize};

/// Why a value is absent. The words are part of the JSON contract.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reason {
    /// Nobody read it: not asked for, not due yet, or written by a version that does not know it.
    #[default]
    NotRead,
    /// The device, driver or kernel does not offer it.
    Unsupported,
    /// This user may not read it.
    Denied,
    /// What it belonged to has ended or was removed.
    Gone,
    /// The source gave a value that cannot be true and was dropped.
    Implausible,
    /// The read failed, or the reason is one that this version does not know.
    #[serde(other)]
    Unknown,
}

impl Reason {
    /// A noun phrase to stand behind a dash: `– not supported here`.
    pub fn words(self) -> &'static str {
        match self {
            Self::NotRead => "not read",
            Self::Unsupported => "not supported here",
            Self::Denied => "no permission",
            Self::Gone => "gone",
            Self::Implausible => "implausible value dropped",
            Self::Unknown => "could not be read",
        }
    }
}

/// An absence: its reason and, where one can be told, what to know or do about it.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Missing {
    #[serde(rename = "missing")]
    pub reason: Reason,
    /// A clause without a final period: `the driver lists no memory for WSL processes`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hint: Option<Box<str>>,
}

impl Missing {
    pub fn new(reason: Reason, hint: impl Into<Box<str>>) -> Self {
        Self {
            reason,
            hint: Some(hint.into()),
        }
    }
}

impl From<Reason> for Missing {
    fn from(reason: Reason) -> Self {
        Self { reason, hint: None }
    }
}

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.hint {
            Some(hint) => f.write_str(hint),
            None => f.write_str(self.reason.words()),
        }
    }
}

/// A value or the reason for its absence; never a stand-in such as 0 or -1.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(untagged)]
pub enum Reading<T> {
    Value(T),
    Missing(Missing),
}

impl<T> Reading<T> {
    pub fn missing(reason: Reason, hint: impl Into<Box<str>>) -> Self {
        Self::Missing(Missing::new(reason, hint))
    }

    pub fn value(&self) -> Option<&T> {
        match self {
            Self::Value(value) => Some(value),
            Self::Missing(_) => None,
        }
    }

    /// The reason, when there is no value.
    pub fn why(&self) -> Option<&Missing> {
        match self {
            Self::Value(_) => None,
            Self::Missing(missing) => Some(missing),
        }
    }

    pub fn map<U>(self, f: impl FnOnce(T) -> U) -> Reading<U> {
        match self {
            Self::Value(value) => Reading::Value(f(value)),
            Self::Missing(missing) => Reading::Missing(missing),
        }
    }

    /// True for the default, which the wire leaves out.
    pub fn is_not_read(&self) -> bool {
        matches!(self, Self::Missing(m) if m.reason == Reason::NotRead && m.hint.is_none())
    }
}

impl<T: PartialOrd> Reading<T> {
    /// A value beyond `most` cannot be true.
    #[must_use]
    pub fn at_most(self, most: T) -> Self {
        match self {
            Self::Value(value) if value > most => Self::Missing(Reason::Implausible.into()),
            other => other,
        }
    }
}

impl<T: Copy> Reading<T> {
    pub fn get(&self) -> Option<T> {
        self.value().copied()
    }
}

impl<T> Default for Reading<T> {
    fn default() -> Self {
        Self::Missing(Missing::default())
    }
}

impl<T> From<T> for Reading<T> {
    fn from(value: T) -> Self {
        Self::Value(value)
    }
}

impl<T> From<Result<T, Missing>> for Reading<T> {
    fn from(result: Result<T, Missing>) -> Self {
        match result {
            Ok(value) => Self::Value(value),
            Err(missing) => Self::Missing(missing),
        }
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Reading<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ReadingVisitor(PhantomData))
    }
}

const UNEXPECTED: &str = "a value of a kind this version does not know";

/// Written by hand because serde's `untagged` buffers every value first, and a frame holds a thousand of them.
struct ReadingVisitor<T>(PhantomData<T>);

impl<T> ReadingVisitor<T> {
    fn accept<'de, E: de::Error, D: Deserializer<'de>>(deserializer: D) -> Result<Reading<T>, E>
    where
        T: Deserialize<'de>,
    {
        Ok(T::deserialize(deserializer).map_or_else(
            |_| {
                Reading::missing(
                    Reason::Unknown,
                    "a value of a kind this version does not know",
                )
            },
            Reading::Value,
        ))
    }
}

impl<'de, T: Deserialize<'de>> de::Visitor<'de> for ReadingVisitor<T> {
    type Value = Reading<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value, or an object with the reason why it is missing")
    }

    fn visit_bool<E: de::Error>(self, v: bool) -> Result<Self::Value, E> {
        let source: value::BoolDeserializer<value::Error> = v.into_deserializer();
        Self::accept(source)
    }

    fn visit_u64<E: de::Error>(self, v: u64) -> Result<Self::Value, E> {
        let source: value::U64Deserializer<value::Error> = v.into_deserializer();
        Self::accept(source)
    }

    fn visit_i64<E: de::Error>(self, v: i64) -> Result<Self::Value, E> {
        let source: value::I64Deserializer<value::Error> = v.into_deserializer();
        Self::accept(source)
    }

    fn visit_f64<E: de::Error>(self, v: f64) -> Result<Self::Value, E> {
        let source: value::F64Deserializer<value::Error> = v.into_deserializer();
        Self::accept(source)
    }

    fn visit_str<E: de::Error>(self, v: &str) -> Result<Self::Value, E> {
        let source: value::StrDeserializer<'_, value::Error> = v.into_deserializer();
        Self::accept(source)
    }

    fn visit_unit<E: de::Error>(self) -> Result<Self::Value, E> {
        Ok(Reading::default())
    }

    /// A scalar refuses a list before it takes anything from it, so the rest can be passed over. An element that
    /// fails inside a list that was expected fails the line, as any other mistyped field does.
    fn visit_seq<A: de::SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
        let value = T::deserialize(value::SeqAccessDeserializer::new(&mut seq));
        while seq.next_element::<de::IgnoredAny>()?.is_some() {}
        Ok(value.map_or_else(
            |_| Reading::missing(Reason::Unknown, UNEXPECTED),
            Reading::Value,
        ))
    }

    /// Entry by entry, so that a hint of another shape costs the hint and not the frame.
    fn visit_map<A: de::MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut missing = Missing::from(Reason::Unknown);
        while let Some(key) = map.next_key::<std::borrow::Cow<'_, str>>()? {
            match (&*key, map.next_value::<serde_json::Value>()?) {
                ("missing", reason) => {
                    missing.reason = Reason::deserialize(reason).unwrap_or(Reason::Unknown);
                }
                ("hint", serde_json::Value::String(hint)) => missing.hint = Some(hint.into()),
                _ => {}
            }
        }
        Ok(Reading::Missing(missing))
    }
}
