//! Readings: a value, or the reason why it is missing.
//!
//! On the wire, a reading is the bare value (`42`), or `{"missing": "denied", "hint": "…"}` if the value is missing.
//! The reason is a unit enum with a fallback, and the hint is a separate field. Therefore an unknown reason from a
//! later version affects only that reading, not the whole frame. For the same reason, a value of an unexpected type is
//! read as `unknown`.
//!
//! A reading's value is never serialized as a JSON object, so an object always means a missing value and contains the
//! reason.

use std::fmt;
use std::marker::PhantomData;

use serde::de::{self, IntoDeserializer, value};
use serde::{Deserialize, Deserializer, Serialize};

crate::named! {
    /// Reason why a value is missing. The names are part of the JSON contract.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
    #[serde(rename_all = "snake_case")]
    pub enum Reason {
        /// Not read, because the value was not requested, is not due yet, or is unknown to the version that wrote the data.
        #[default]
        NotRead = "not read",
        /// The device, driver or kernel does not provide the value.
        Unsupported = "not supported here",
        /// The user is not permitted to read the value.
        Denied = "no permission",
        /// The process has exited, or the device was removed.
        Gone = "no longer exists",
        /// The source returned an impossible value, which was dropped.
        Implausible = "implausible value dropped",
        /// The read failed, or this version does not know the reason.
        #[serde(other)]
        Unknown = "could not be read",
    }
    /// Returns a short description of the reason, shown after a dash: `– not supported here`.
    fn words;
}

#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Missing {
    #[serde(rename = "missing")]
    pub reason: Reason,
    /// Explanation or fix, a phrase without a period: `the driver lists no memory for WSL processes`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hint: Option<Box<str>>,
}

impl Missing {
    pub fn new(reason: Reason, hint: impl Into<Box<str>>) -> Self {
        Self { reason, hint: Some(hint.into()) }
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

/// A value, or the reason why it is missing. Never a placeholder such as 0 or -1.
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

    /// Returns the value, or a missing reading with `reason` and `hint`.
    pub fn or_missing(value: Option<T>, reason: Reason, hint: impl Into<Box<str>>) -> Self {
        value.map_or_else(|| Self::missing(reason, hint), Self::Value)
    }

    pub fn value(&self) -> Option<&T> {
        match self {
            Self::Value(value) => Some(value),
            Self::Missing(_) => None,
        }
    }

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

    /// Returns true for the default reading, which is omitted on the wire.
    pub fn is_not_read(&self) -> bool {
        matches!(self, Self::Missing(m) if m.reason == Reason::NotRead && m.hint.is_none())
    }
}

impl<T: PartialOrd> Reading<T> {
    /// Replaces a value above `max` with [`Reason::Implausible`].
    #[must_use]
    pub fn at_most(self, max: T) -> Self {
        match self {
            Self::Value(value) if value > max => Self::Missing(Reason::Implausible.into()),
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

const UNEXPECTED: &str = "a value of an unknown kind";

/// Deserializes a reading. Written by hand, because serde's `untagged` first buffers every value, which is slow for the
/// thousand readings in a frame.
struct ReadingVisitor<T>(PhantomData<T>);

fn accept<T, E>(value: Result<T, E>) -> Reading<T> {
    value.map_or_else(|_| Reading::missing(Reason::Unknown, UNEXPECTED), Reading::Value)
}

macro_rules! visit {
    ($($name:ident($kind:ty),)*) => {$(
        fn $name<E: de::Error>(self, v: $kind) -> Result<Self::Value, E> {
            Ok(accept(T::deserialize(IntoDeserializer::<value::Error>::into_deserializer(v))))
        }
    )*};
}

impl<'de, T: Deserialize<'de>> de::Visitor<'de> for ReadingVisitor<T> {
    type Value = Reading<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value, or an object with the reason why it is missing")
    }

    visit! {
        visit_bool(bool),
        visit_u64(u64),
        visit_i64(i64),
        visit_f64(f64),
        visit_str(&str),
    }

    fn visit_unit<E: de::Error>(self) -> Result<Self::Value, E> {
        Ok(Reading::default())
    }

    /// Skips the remaining elements if `T` rejects the list before reading an element. If an element of an expected
    /// list is invalid, the whole line fails, as for any other field of the wrong type.
    fn visit_seq<A: de::SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
        let value = T::deserialize(value::SeqAccessDeserializer::new(&mut seq));
        while seq.next_element::<de::IgnoredAny>()?.is_some() {}
        Ok(accept(value))
    }

    /// Reads the map entry by entry, so that a malformed hint is dropped without rejecting the whole frame.
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
