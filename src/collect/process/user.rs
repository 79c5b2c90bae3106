//! Caches user names by user ID.
//!
//! Uses `getpwuid`, because a cluster's users are in LDAP instead of /etc/passwd. A directory server may take seconds
//! or never respond, so a separate thread looks up the names. Until a name arrives, the user ID is shown.

use std::collections::HashMap;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::Duration;

use gputop_model::text::visible;
use nix::unistd::{Uid, User};

/// Maximum wait for a user name on its first use. A lookup in /etc/passwd finishes in less time.
const LOOKUP_TIMEOUT: Duration = Duration::from_millis(20);
/// Maximum length of a user name. useradd's limit is 32 bytes; names in a directory service may be longer.
const MAX_NAME_CHARS: usize = 64;

pub struct UserNames {
    known: HashMap<u32, String>,
    lookup: Option<Lookup>,
}

struct Lookup {
    request: Sender<u32>,
    answers: Receiver<(u32, String)>,
    unanswered: usize,
}

impl UserNames {
    pub fn new() -> Self {
        Self { known: HashMap::new(), lookup: None }
    }

    /// Returns the user's name, or the user ID if the user has no name or the lookup has not finished.
    pub fn name(&mut self, uid: u32) -> String {
        let is_new = !self.known.contains_key(&uid);
        if is_new {
            self.known.insert(uid, uid.to_string());
            self.lookup = self.lookup.take().or_else(Lookup::start);
        }
        if let Some(lookup) = &mut self.lookup {
            let timeout = if is_new { lookup.request(uid) } else { Duration::ZERO };
            lookup.take_answers(timeout, &mut self.known);
        }
        self.known.get(&uid).cloned().unwrap_or_default()
    }

    /// Replaces the ID in `shown` by the user's name if the name has arrived since.
    pub fn update(&mut self, uid: u32, shown: &mut String) {
        if let Some(lookup) = &mut self.lookup {
            lookup.take_answers(Duration::ZERO, &mut self.known);
        }
        if let Some(name) = self.known.get(&uid).filter(|name| *name != shown) {
            shown.clone_from(name);
        }
    }
}

impl Lookup {
    /// Requests a user name. Returns the maximum wait for the answer, which is zero while earlier answers are pending.
    fn request(&mut self, uid: u32) -> Duration {
        let is_idle = self.unanswered == 0;
        self.unanswered += usize::from(self.request.send(uid).is_ok());
        if is_idle { LOOKUP_TIMEOUT } else { Duration::ZERO }
    }

    fn take_answers(&mut self, timeout: Duration, known: &mut HashMap<u32, String>) {
        while self.unanswered > 0
            && let Ok((uid, name)) = self.answers.recv_timeout(timeout)
        {
            known.insert(uid, name);
            self.unanswered -= 1;
        }
    }

    /// Starts the lookup thread. Returns `None` on failure; user IDs are then shown instead of names.
    fn start() -> Option<Self> {
        let (request, requests) = channel();
        let (reply, answers) = channel();
        thread::Builder::new()
            .name("user names".into())
            .spawn(move || {
                for uid in requests {
                    if reply.send((uid, look_up(uid))).is_err() {
                        break;
                    }
                }
            })
            .ok()?;
        Some(Self { request, answers, unanswered: 0 })
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
    fn resolves_root_and_shows_unknown_id_as_number() {
        let mut names = UserNames::new();
        while names.name(0) != "root" {
            thread::yield_now();
        }
        assert_eq!(names.name(4_123_456_789), "4123456789");
    }

    #[test]
    fn a_late_name_replaces_the_id() {
        let (request, _requests) = channel();
        let (reply, answers) = channel();
        let lookup = Lookup { request, answers, unanswered: 1 };
        let known = HashMap::from([(7, "7".to_owned())]);
        let mut names = UserNames { known, lookup: Some(lookup) };
        let mut shown = "7".to_owned();
        names.update(7, &mut shown);
        assert_eq!(shown, "7");
        reply.send((7, "ana".to_owned())).expect("a receiver");
        names.update(7, &mut shown);
        assert_eq!(shown, "ana");
    }
}
