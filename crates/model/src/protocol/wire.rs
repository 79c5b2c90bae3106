//! The JSON of updates. The table in [`protocol`](super) generates most of it; the types here convert values whose JSON
//! differs from their form in memory.

use serde::ser::{Error as _, SerializeMap, Serializer};
use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;

use super::Update;
use super::map_line::MapLine;
use crate::holders::summary::HolderSummary;
use crate::{Missing, ProcessKey, Signal, Signalled};

/// Place of an update in its line.
pub(super) enum Place {
    /// The line itself: `{"frame":{…}}`.
    Line,
    /// Nested, because only a live source sends it, and it is never recorded: `{"reply":{"log":{…}}}`.
    Reply,
    /// A line of its own kind, which is parsed only when it is needed: [`MapLine`].
    Map,
}

/// Implements serialization, parsing and the memory of [`Update`] from a table with a row for each update that is sent: its
/// place in the line, its name, its value in JSON, and how it is read. The names of further kinds that are only read follow,
/// then the updates that are not sent.
macro_rules! wire_forms {
    (
        $($place:ident $kind:literal $update:pat => $value:expr, |$read:ident: $type:ty| $result:expr;)*
        $($other_kind:literal, |$other_read:ident: $other_type:ty| $other_result:expr;)*
        not sent: $not_sent:pat
    ) => {
        impl Update {
            /// Returns the update's place in its line, or `None` if it is not sent.
            #[expect(unused_variables, reason = "the patterns of the table bind values")]
            fn place(&self) -> Option<wire::Place> {
                match self {
                    $($update => Some(wire::Place::$place),)*
                    Self::Map(_) | Self::FailureMap(_) => Some(wire::Place::Map),
                    $not_sent => None,
                }
            }

            /// Writes the update as an entry of its line.
            fn write<M: serde::ser::SerializeMap>(&self, line: &mut M) -> Result<(), M::Error> {
                match self {
                    $($update => line.serialize_entry($kind, &$value),)*
                    _ => Err(serde::ser::Error::custom("not sent to other hosts")),
                }
            }

            /// Parses the entry `kind` of a line, or returns `None` if its kind is unknown.
            fn read<'de, A: serde::de::MapAccess<'de>>(
                kind: &str,
                line: &mut A,
            ) -> Result<Option<Self>, A::Error> {
                Ok(Some(match kind {
                    $($kind => {
                        let $read: $type = line.next_value()?;
                        $result
                    })*
                    $($other_kind => {
                        let $other_read: $other_type = line.next_value()?;
                        $other_result
                    })*
                    _ => return Ok(None),
                }))
            }

            /// Returns the approximate memory of the update in bytes. Every queue of updates is limited by their sum.
            pub fn memory_size(&self) -> usize {
                let content = match self {
                    $($update => memory_size::of(&$value),)*
                    Self::Map(map) => memory_size::of(&**map),
                    Self::FailureMap(failed) => memory_size::of(&failed.map),
                    Self::Jump { summaries, .. } | Self::Past { summaries, .. } => {
                        memory_size::of(summaries)
                    }
                    Self::End(why) => memory_size::of(why),
                    // Their texts were written by this process.
                    Self::Position(_) | Self::Link(_) => 0,
                };
                size_of::<Self>() + content
            }
        }
    };
}

pub(super) use wire_forms;

impl Update {
    /// Returns true if an agent sends this update to other hosts. The other updates describe a recording or a
    /// connection.
    pub fn is_sent(&self) -> bool {
        self.place().is_some()
    }
}

impl Serialize for Update {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let map_line = |map, since| MapLine::new(map, since).map_err(S::Error::custom);
        match self {
            Self::Map(map) => return map_line(map, None)?.serialize(serializer),
            Self::FailureMap(failed) => {
                return map_line(&failed.map, Some(failed.since))?.serialize(serializer);
            }
            _ => {}
        }
        let mut line = serializer.serialize_map(Some(1))?;
        match self.place() {
            Some(Place::Reply) => line.serialize_entry("reply", &Reply(self))?,
            _ => self.write(&mut line)?,
        }
        line.end()
    }
}

pub(super) fn cut(mut summary: HolderSummary) -> HolderSummary {
    summary.cut();
    summary
}

/// The payload of a `reply` line.
struct Reply<'a>(&'a Update);

impl Serialize for Reply<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut reply = serializer.serialize_map(Some(1))?;
        self.0.write(&mut reply)?;
        reply.end()
    }
}

/// The wire form of a reply about one process.
#[skip_serializing_none]
#[derive(Serialize, Deserialize)]
#[serde(bound(deserialize = "T: Deserialize<'de>"))]
pub(super) struct Answer<T> {
    pub(super) process: ProcessKey,
    #[serde(rename = "is")]
    value: Option<T>,
    #[serde(default, rename = "why_not")]
    missing: Option<Missing>,
}

impl<'a, T> Answer<&'a T> {
    pub(super) fn of(process: ProcessKey, answer: &'a Result<T, Missing>) -> Self {
        Self { process, value: answer.as_ref().ok(), missing: answer.as_ref().err().cloned() }
    }
}

impl<T> Answer<T> {
    pub(super) fn result(self) -> Result<T, Missing> {
        self.value.ok_or_else(|| self.missing.unwrap_or_default())
    }
}

/// The wire form of [`Update::NoMap`].
#[derive(Default, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct NoMap {
    pub(super) process: ProcessKey,
    pub(super) ordinal: u32,
    pub(super) why: Missing,
}

impl NoMap {
    pub(super) fn of((process, ordinal): (ProcessKey, u32), why: &Missing) -> Self {
        Self { process, ordinal, why: why.clone() }
    }
}

/// The wire form of [`Signalled`].
#[derive(Serialize, Deserialize)]
#[serde(bound(deserialize = "T: Deserialize<'de>"))]
pub(super) struct Outcomes<T> {
    signal: Signal,
    #[serde(rename = "of")]
    outcomes: Vec<Answer<T>>,
}

impl<'a> Outcomes<&'a ()> {
    pub(super) fn of(signalled: &'a Signalled) -> Self {
        let outcomes = signalled.outcomes.iter();
        Self {
            signal: signalled.signal,
            outcomes: outcomes.map(|(process, sent)| Answer::of(*process, sent)).collect(),
        }
    }
}

impl Outcomes<()> {
    pub(super) fn signalled(self) -> Signalled {
        let outcomes = self.outcomes.into_iter();
        Signalled {
            signal: self.signal,
            // `()` serializes as null, which deserializes as a missing value. A missing reason therefore means that the
            // signal was sent.
            outcomes: outcomes.map(|one| (one.process, one.missing.map_or(Ok(()), Err))).collect(),
        }
    }
}
