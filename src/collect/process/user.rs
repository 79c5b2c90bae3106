//! The name of a user id, asked for once.
//!
//! Through `getpwuid`, since the users of a cluster are in LDAP and not in /etc/passwd. The directory server may
//! take seconds or never answer, so a thread of its own asks; until it knows, the id stands for the name.

use std::collections::HashMap;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::Duration;

use nix::unistd::{Uid, User};

use crate::model::text::visible;

/// How long a reading waits for a name it has not asked for before: /etc/passwd answers within it.
const PATIENCE: Duration = Duration::from_millis(20);
/// A useradd's limit is 32 bytes; a directory's may be longer.
const MAX_NAME_CHARS: usize = 64;

pub struct UserNames {
    known: HashMap<u32, String>,
    lookup: Option<Lookup>,
}

struct Lookup {
    ask: Sender<u32>,
    answers: Receiver<(u32, String)>,
    unanswered: usize,
}

impl UserNames {
    pub fn new() -> Self {
        Self {
            known: HashMap::new(),
            lookup: None,
        }
    }

    /// The name, or the id where it has none or is not known yet.
    pub fn name(&mut self, uid: u32) -> String {
        let is_new = !self.known.contains_key(&uid);
        if is_new {
            self.known.insert(uid, uid.to_string());
            self.lookup = self.lookup.take().or_else(Lookup::start);
        }
        if let Some(lookup) = &mut self.lookup {
            let patience = if is_new {
                lookup.ask(uid)
            } else {
                Duration::ZERO
            };
            lookup.take_answers(patience, &mut self.known);
        }
        self.known.get(&uid).cloned().unwrap_or_default()
    }
}

impl Lookup {
    /// How long to wait for the answer: a directory that still owes one is not waited for again.
    fn ask(&mut self, uid: u32) -> Duration {
        let is_idle = self.unanswered == 0;
        self.unanswered += usize::from(self.ask.send(uid).is_ok());
        if is_idle { PATIENCE } else { Duration::ZERO }
    }

    fn take_answers(&mut self, patience: Duration, known: &mut HashMap<u32, String>) {
        while self.unanswered > 0
            && let Ok((uid, name)) = self.answers.recv_timeout(patience)
        {
            known.insert(uid, name);
            self.unanswered -= 1;
        }
    }

    /// None when no thread can be had: then ids stand for names.
    fn start() -> Option<Self> {
        let (ask, questions) = channel();
        let (reply, answers) = channel();
        thread::Builder::new()
            .name("user names".into())
            .spawn(move || {
                for uid in questions {
                    if reply.send((uid, look_up(uid))).is_err() {
                        break;
                    }
                }
            })
            .ok()?;
        Some(Self {
            ask,
            answers,
            unanswered: 0,
        })
    }
}

fn look_up(uid: u32) -> String {
    match User::from_uid(Uid::from_raw(uid)) {
        Ok(Some(user)) => visible(user.name.as_bytes(), MAX_NAME_CHARS),
        _ => uid.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn root_has_a_name_and_an_unknown_id_stands_for_itself() {
        let mut names = UserNames::new();
        while names.name(0) != "root" {
            thread::yield_now();
        }
        assert_eq!(names.name(4_123_456_789), "4123456789");
    }
}
