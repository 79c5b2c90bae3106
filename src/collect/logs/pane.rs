//! The tmux pane whose terminal a process writes to, asked for what it shows and has scrolled away.
//!
//! A pane keeps no log: what is new is what was not there at the last capture. Two captures are laid over each other
//! by their lines (wrapped ones joined, so that another width changes nothing): the later one begins somewhere inside
//! the earlier one, and its last lines may have been written over (a progress bar, a prompt). A line that stands at
//! the end and still changes is held back until it holds still; after a program's end two captures follow at once.
//!
//! Only servers of the user who runs this are asked: a socket is a program's invitation to run commands. A server that
//! does not answer costs its own thread half a second, every ten.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::Settings;
use super::command::answer;
use super::piped_log::Mailbox;
use crate::model::reading::{Missing, Reason};

const PERIOD: Duration = Duration::from_millis(700);
/// How long a server is left alone that did not answer.
const AFTER_SILENCE: Duration = Duration::from_secs(10);
/// How far back a capture goes, in rows of the screen.
const HISTORY: &str = "-2000";
const MAX_SOCKETS: usize = 8;
/// So many of the last lines may have been written over since.
const MAX_OVERWRITTEN: usize = 64;
/// Two captures lie over each other when so many lines agree.
const ENOUGH: usize = 3;

/// One pane of one server.
#[derive(Debug, Clone)]
pub struct Pane {
    program: PathBuf,
    socket: String,
    /// `%3`
    id: String,
}

impl Pane {
    /// The pane whose terminal this is: the same device, not the same path, since each container has its own.
    ///
    /// # Errors
    /// With why there is none, for a person who wonders.
    pub fn find(settings: &Settings, terminal: (u64, u64)) -> Result<Self, Missing> {
        let mut silent = false;
        for socket in sockets(settings) {
            let Some(socket) = socket.to_str() else {
                continue;
            };
            let args = [
                "-u",
                "-S",
                socket,
                "list-panes",
                "-a",
                "-F",
                "#{pane_id} #{pane_tty}",
            ];
            let list = match answer(&settings.tmux, &args) {
                Ok(list) => list,
                Err(error) => {
                    silent |= error.kind() == io::ErrorKind::TimedOut;
                    continue;
                }
            };
            let list = String::from_utf8_lossy(&list);
            let found = list.lines().filter_map(|line| line.split_once(' '));
            for (id, path) in found {
                if fs::metadata(path).is_ok_and(|m| (m.dev(), m.rdev()) == terminal) {
                    return Ok(Self {
                        program: settings.tmux.clone(),
                        socket: socket.into(),
                        id: id.into(),
                    });
                }
            }
        }
        let hint = if silent {
            "a terminal, and the tmux server that may own it does not answer"
        } else {
            "a terminal that is no tmux pane of this user"
        };
        Err(Missing::new(Reason::Unsupported, hint))
    }

    pub fn name(&self) -> String {
        format!("tmux pane {}", self.id)
    }

    /// The lines that the pane holds, the newest last; none while another program has its whole screen (and shows, as
    /// an editor or a dashboard does, what is no output).
    fn capture(&self) -> io::Result<Option<Vec<String>>> {
        let (socket, id) = (self.socket.as_str(), self.id.as_str());
        let ask = [
            "-u",
            "-S",
            socket,
            "display-message",
            "-p",
            "-t",
            id,
            "#{alternate_on}",
        ];
        let capture = [";", "capture-pane", "-p", "-J", "-S", HISTORY, "-t", id];
        let text = answer(&self.program, &[&ask[..], &capture[..]].concat())?;
        let text = String::from_utf8_lossy(&text);
        let mut lines = text.lines();
        if lines.next() != Some("0") {
            return Ok(None);
        }
        let mut lines: Vec<String> = lines.map(|line| line.trim_end().to_owned()).collect();
        while lines.last().is_some_and(String::is_empty) {
            lines.pop();
        }
        Ok(Some(lines))
    }

    /// Brings what is new until nobody reads it or the pane is gone; what it holds now is older.
    pub fn follow(&self, mailbox: &Mailbox, brought: impl Fn()) {
        let mut seen = LastCapture::default();
        let mut is_first = true;
        while mailbox.is_read() {
            let pause = match self.capture() {
                Ok(None) => PERIOD,
                Ok(Some(lines)) if is_first => {
                    is_first = false;
                    seen.begin(lines);
                    PERIOD
                }
                Ok(Some(lines)) => {
                    let new = seen.next(lines);
                    if !new.is_empty() {
                        let Ok(()) = mailbox.put(new.as_bytes()) else {
                            return;
                        };
                        brought();
                    }
                    PERIOD
                }
                Err(error) if error.kind() == io::ErrorKind::TimedOut => AFTER_SILENCE,
                // The pane was closed, or its server.
                Err(_) => return,
            };
            if mailbox.pause(pause).is_err() {
                return;
            }
        }
    }
}

/// The sockets of this user's servers.
fn sockets(settings: &Settings) -> Vec<PathBuf> {
    let own = |path: &Path| {
        fs::symlink_metadata(path)
            .is_ok_and(|m| m.file_type().is_socket() && m.uid() == settings.user)
    };
    let in_folder = |folder: &PathBuf| -> Vec<PathBuf> {
        let is_own =
            fs::symlink_metadata(folder).is_ok_and(|m| m.is_dir() && m.uid() == settings.user);
        let entries = is_own.then(|| fs::read_dir(folder).ok()).flatten();
        let paths = entries.into_iter().flatten().flatten();
        paths.take(64).map(|entry| entry.path()).collect()
    };
    let folders = settings.tmux_folders.iter().flat_map(in_folder);
    let mut sockets: Vec<PathBuf> = settings
        .tmux_socket
        .iter()
        .cloned()
        .chain(folders)
        .collect();
    sockets.retain(|path| own(path));
    let mut known: Vec<PathBuf> = Vec::new();
    for socket in sockets {
        if !known.contains(&socket) {
            known.push(socket);
        }
    }
    known.truncate(MAX_SOCKETS);
    known
}

/// What was there at the last capture.
#[derive(Debug, Default)]
struct LastCapture {
    /// Without the line that is held back.
    lines: Vec<String>,
    held: Option<String>,
}

impl LastCapture {
    fn begin(&mut self, lines: Vec<String>) {
        self.lines = lines;
    }

    /// The lines that were not there, each with its end.
    fn next(&mut self, mut lines: Vec<String>) -> String {
        let from = first_new(&self.lines, &lines);
        let mut new: Vec<String> = match from {
            Some(from) => lines[from..].to_vec(),
            None => not_in(&self.lines, &lines),
        };
        let held = std::mem::take(&mut self.held);
        if let Some(last) = new.last()
            && Some(last) != held.as_ref()
        {
            self.held = new.pop();
            lines.pop();
        }
        self.lines = lines;
        new.iter().flat_map(|line| [line.as_str(), "\n"]).collect()
    }
}

/// Where what is new begins in `after`, if the two lie over each other.
fn first_new(before: &[String], after: &[String]) -> Option<usize> {
    if before.is_empty() {
        return Some(0);
    }
    // The first line of a capture may be the rest of a longer one.
    for skip in 0..=1.min(after.len()) {
        let after = &after[skip..];
        for overwritten in 0..=MAX_OVERWRITTEN.min(before.len() - 1) {
            let kept = &before[..before.len() - overwritten];
            let enough = ENOUGH.min(before.len());
            let scrolled = (0..=kept.len().saturating_sub(enough)).find(|&from| {
                let kept = &kept[from..];
                kept.len() >= enough && after.starts_with(kept)
            });
            if let Some(scrolled) = scrolled {
                return Some(skip + kept.len() - scrolled);
            }
        }
    }
    None
}

/// The lines of `after` that `before` does not have: of a screen that was cleared.
fn not_in(before: &[String], after: &[String]) -> Vec<String> {
    let mut known: HashMap<&str, usize> = HashMap::new();
    for line in before {
        *known.entry(line).or_default() += 1;
    }
    let mut new = Vec::new();
    for line in after {
        match known.get_mut(line.as_str()) {
            Some(count) if *count > 0 => *count -= 1,
            _ => new.push(line.clone()),
        }
    }
    new
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(text: &str) -> Vec<String> {
        text.split(' ').map(str::to_owned).collect()
    }

    /// What each capture after the first brings, lines with blanks between.
    fn brought(captures: &[&str]) -> Vec<String> {
        let mut seen = LastCapture::default();
        seen.begin(lines(captures[0]));
        let rest = captures[1..].iter();
        rest.map(|capture| seen.next(lines(capture)).trim_end().replace('\n', " "))
            .collect()
    }

    #[test]
    fn only_what_was_not_there_is_new() {
        // It grows; its last line is held until it holds still.
        assert_eq!(
            brought(&["a b c $", "a b c d e $", "a b c d e $"]),
            ["d e", "$"]
        );
        // It scrolls: the oldest lines are gone.
        assert_eq!(
            brought(&["a b c d e", "c d e f g h", "c d e f g h"]),
            ["f g", "h"]
        );
        // The first line is the rest of a longer one.
        assert_eq!(brought(&["a b c d e", "gd c d e f g"]), ["f"]);
        // A progress bar is written over, and is new when it is done.
        assert_eq!(
            brought(&["a b c 10%", "a b c 20%", "a b c 30% d e", "a b c 30% d e"]),
            ["", "30% d", "e"]
        );
        // The same error as before the attaching counts when it comes again, and only then.
        assert_eq!(brought(&["a OOM b c", "a OOM b c"]), [""]);
        assert_eq!(brought(&["a OOM b c", "a OOM b c OOM x x"]), ["OOM x"]);
        // The screen is cleared; what was there and stays is not new.
        assert_eq!(brought(&["a b c d e f", "e f x y"]), ["x"]);
        // Nothing, then something.
        assert_eq!(brought(&["", "a b"]), ["a"]);
    }

    #[test]
    fn much_text_is_laid_over_itself_quickly() {
        let text =
            |from: usize| -> Vec<String> { (from..from + 2_000).map(|n| n.to_string()).collect() };
        let begun = std::time::Instant::now();
        assert_eq!(first_new(&text(0), &text(1_500)), Some(500));
        assert_eq!(first_new(&text(0), &text(5_000)), None);
        assert!(begun.elapsed() < Duration::from_secs(2));
    }
}
