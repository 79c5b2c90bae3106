//! Replies of a remote agent to requests, and other messages that only a live source sends. They are never recorded.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::Update;
use crate::model::log::LogView;
use crate::model::probe::Probe;
use crate::model::process::{ProcessDetail, ProcessKey};
use crate::model::reading::Missing;
use crate::model::remote_incident::{IncidentFile, RemoteIncident};
use crate::model::signal::{Signal, Signalled};
use crate::model::stack::PythonStack;

/// A reply. Exactly one field is set, or none if this version does not know the kind.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Reply {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub detail: Option<Box<Answer<ProcessDetail>>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub no_map: Option<NoMap>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stacks: Option<Answer<PythonStack>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub log: Option<LogView>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub watched: Option<Answer<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub signalled: Option<Outcomes>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub probed: Option<Box<Probe>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub notice: Option<String>,
    /// Contents of the incident store, newest first. Sent again after each change.
    #[serde(rename = "shelf", skip_serializing_if = "Option::is_none")]
    pub stored_incidents: Option<Vec<IncidentFile>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub incident: Option<Box<RemoteIncident>>,
}

/// The answer about one process, or the reason why there is none.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(bound(deserialize = "T: Deserialize<'de>"))]
pub struct Answer<T> {
    pub process: ProcessKey,
    #[serde(rename = "is", skip_serializing_if = "Option::is_none")]
    pub value: Option<T>,
    #[serde(default, rename = "why_not", skip_serializing_if = "Option::is_none")]
    pub missing: Option<Missing>,
}

#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct NoMap {
    pub process: ProcessKey,
    pub ordinal: u32,
    pub why: Missing,
}

/// The result of sending a signal to each process.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Outcomes {
    pub signal: Signal,
    #[serde(rename = "of")]
    pub outcomes: Vec<Answer<()>>,
}

impl<T> Answer<T> {
    fn new(process: ProcessKey, answer: Result<T, Missing>) -> Self {
        let (value, missing) = match answer {
            Ok(value) => (Some(value), None),
            Err(why) => (None, Some(why)),
        };
        Self {
            process,
            value,
            missing,
        }
    }

    fn answer(self) -> Result<T, Missing> {
        self.value.ok_or_else(|| self.missing.unwrap_or_default())
    }
}

impl Reply {
    /// Returns the reply for an update. Returns `None` for updates with lines of their own, and for updates that a
    /// live source never sends.
    pub fn of(update: Update) -> Option<Self> {
        let empty = Self::default();
        Some(match update {
            Update::Detail(process, detail) => Self {
                detail: Some(Box::new(Answer::new(process, *detail))),
                ..empty
            },
            Update::NoMap((process, ordinal), why) => Self {
                no_map: Some(NoMap {
                    process,
                    ordinal,
                    why,
                }),
                ..empty
            },
            Update::Stacks(process, stack) => Self {
                stacks: Some(Answer::new(process, (*stack).clone())),
                ..empty
            },
            Update::Log(log) => Self {
                log: Some((*log).clone()),
                ..empty
            },
            Update::Watched(process, name) => Self {
                watched: Some(Answer::new(process, name)),
                ..empty
            },
            Update::Signalled(signalled) => Self {
                signalled: Some(Outcomes::of(signalled)),
                ..empty
            },
            Update::Probed(probe) => Self {
                probed: Some(Box::new((*probe).clone())),
                ..empty
            },
            Update::Notice(notice) => Self {
                notice: Some(notice),
                ..empty
            },
            _ => return None,
        })
    }

    pub fn update(self) -> Option<Update> {
        if let Some(detail) = self.detail {
            Some(Update::Detail(detail.process, Box::new(detail.answer())))
        } else if let Some(NoMap {
            process,
            ordinal,
            why,
        }) = self.no_map
        {
            Some(Update::NoMap((process, ordinal), why))
        } else if let Some(stacks) = self.stacks {
            Some(Update::Stacks(stacks.process, stacks.answer().into()))
        } else if let Some(log) = self.log {
            Some(Update::Log(log.into()))
        } else if let Some(watched) = self.watched {
            Some(Update::Watched(watched.process, watched.answer()))
        } else if let Some(outcomes) = self.signalled {
            Some(Update::Signalled(outcomes.signalled()))
        } else if let Some(probe) = self.probed {
            Some(Update::Probed(Arc::new(*probe)))
        } else if let Some(incident) = self.incident {
            Some(Update::RemoteIncident(Arc::new(*incident)))
        } else {
            self.notice.map(Update::Notice)
        }
    }
}

impl Outcomes {
    fn of(signalled: Signalled) -> Self {
        let outcomes = signalled.outcomes.into_iter();
        Self {
            signal: signalled.signal,
            outcomes: outcomes
                .map(|(key, outcome)| Answer::new(key, outcome))
                .collect(),
        }
    }

    fn signalled(self) -> Signalled {
        let outcomes = self.outcomes.into_iter();
        Signalled {
            signal: self.signal,
            // `()` is written as null, which reads as a missing value: without a reason, the signal was sent.
            outcomes: outcomes
                .map(|one| (one.process, one.missing.map_or(Ok(()), Err)))
                .collect(),
        }
    }
}
