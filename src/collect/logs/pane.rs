//! Follows the tmux pane that a process writes to, by capturing its screen and scrollback.
//!
//! A pane has no log file, so text is considered new if the previous capture does not contain it. To find the new text,
//! two captures are aligned by their lines. Wrapped lines are joined, so the pane's width does not matter. The later
//! capture begins at some line of the earlier one. The last lines of the earlier capture may have been overwritten by a
//! progress bar or a prompt. If the last line is still changing, it is held back until two captures agree on it. When a
//! program exits, two captures follow immediately.
//!
//! Only tmux servers of gputop's user are queried, because another user could offer a socket to make gputop talk to a
//! hostile server. An unresponsive server blocks the log's thread for 0.5 s every 10 s.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use gputop_model::{Millis, Missing, Mono, Reason};

use super::command::answer;
use crate::collect::logs::settings::LogSettings;

const CAPTURE_INTERVAL: Millis = Millis(700);
/// Time after which an unresponsive tmux server is queried again.
const RETRY_INTERVAL: Millis = Millis(10_000);
/// Number of immediate captures after a program exits: one for its last output, and one for the last line, which is
/// held back until two captures agree on it.
const URGENT_CAPTURES: u8 = 2;
/// Minimum interval between on-demand captures.
const URGENT_INTERVAL: Millis = Millis(60);
/// Number of scrollback rows in a capture.
const HISTORY: &str = "-2000";
const MAX_SOCKETS: usize = 8;
/// Maximum number of lines at the end of a capture that may have been overwritten.
const MAX_OVERWRITTEN: usize = 64;
/// Minimum number of equal lines needed to align two captures.
const MIN_OVERLAP: usize = 3;

#[derive(Debug, Clone)]
pub struct Pane {
    program: PathBuf,
    socket: String,
    /// tmux's ID of the pane, such as `%3`.
    id: String,
}

impl Pane {
    /// Finds the tmux pane of a terminal. Compares devices rather than paths, because each container has its own paths.
    /// If there is no such pane, the error is the reason to show to the user.
    pub fn find(settings: &LogSettings, terminal: (u64, u64)) -> Result<Self, Missing> {
        let mut silent = false;
        for socket in sockets(settings) {
            let Some(socket) = socket.to_str() else { continue };
            let list = ["list-panes", "-a", "-F", "#{pane_id} #{pane_tty}"];
            let list = match ask(&settings.tmux, socket, &list) {
                Ok(list) => list,
                Err(error) => {
                    silent |= error.kind() == io::ErrorKind::TimedOut;
                    continue;
                }
            };
            let list = String::from_utf8_lossy(&list);
            for (id, path) in list.lines().filter_map(|line| line.split_once(' ')) {
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
            "the output goes to a terminal, and the tmux server that may own it does not answer"
        } else {
            "the output goes to a terminal that is not a tmux pane of this user"
        };
        Err(Missing::new(Reason::Unsupported, hint))
    }

    pub fn name(&self) -> String {
        format!("tmux pane {}", self.id)
    }

    /// Returns the lines of the pane, oldest first, or `None` while a full-screen program such as an editor is shown.
    fn capture(&self) -> io::Result<Option<Vec<String>>> {
        let id = self.id.as_str();
        let state = ["display-message", "-p", "-t", id, "#{alternate_on}", ";"];
        let capture = ["capture-pane", "-p", "-J", "-S", HISTORY, "-t", id];
        let text = ask(&self.program, &self.socket, &[state.as_slice(), &capture].concat())?;
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
}

fn ask(program: &Path, socket: &str, commands: &[&str]) -> io::Result<Vec<u8>> {
    answer(program, &[&["-u", "-S", socket], commands].concat())
}

#[derive(Debug)]
pub struct PaneCapture {
    pane: Pane,
    /// Previous capture, or `None` before the first. The text of the first capture is not reported, because it was
    /// written before gputop attached.
    last: Option<LastCapture>,
    due: Mono,
    /// Number of captures that are still to be made without the usual delay.
    urgent: u8,
    is_closed: bool,
}

impl PaneCapture {
    pub fn new(pane: Pane) -> Self {
        Self { pane, last: None, due: Mono(0), urgent: 0, is_closed: false }
    }

    pub fn request_now(&mut self) {
        (self.urgent, self.due) = (URGENT_CAPTURES, Mono(0));
    }

    /// Returns the time of the next capture, or `None` if the pane was closed.
    pub fn due(&self) -> Option<Mono> {
        (!self.is_closed).then_some(self.due)
    }

    /// Captures the pane if it is due, and appends the new text.
    pub fn read(&mut self, text: &mut Vec<u8>, now: Mono) {
        if self.is_closed || now < self.due {
            return;
        }
        let mut pause = CAPTURE_INTERVAL;
        match self.pane.capture() {
            Ok(None) => {}
            Ok(Some(lines)) => match &mut self.last {
                Some(last) => text.extend(last.next(lines).into_bytes()),
                None => self.last = Some(LastCapture { lines, held: None }),
            },
            Err(error) if error.kind() == io::ErrorKind::TimedOut => pause = RETRY_INTERVAL,
            // Stop capturing, because the pane or its server was closed.
            Err(_) => self.is_closed = true,
        }
        self.urgent = self.urgent.saturating_sub(1);
        if self.urgent > 0 {
            pause = URGENT_INTERVAL;
        }
        self.due = Mono(now.0 + pause.0);
    }
}

/// Returns the sockets of this user's tmux servers.
fn sockets(settings: &LogSettings) -> Vec<PathBuf> {
    let own = |path: &Path| {
        fs::symlink_metadata(path)
            .is_ok_and(|m| m.file_type().is_socket() && m.uid() == settings.user)
    };
    let in_folder = |folder: &PathBuf| -> Vec<PathBuf> {
        let is_own =
            fs::symlink_metadata(folder).is_ok_and(|m| m.is_dir() && m.uid() == settings.user);
        let entries = is_own.then(|| fs::read_dir(folder).ok()).flatten();
        entries.into_iter().flatten().flatten().take(64).map(|entry| entry.path()).collect()
    };
    let folders = settings.tmux_folders.iter().flat_map(in_folder);
    let mut sockets: Vec<PathBuf> = settings.tmux_socket.iter().cloned().chain(folders).collect();
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

#[derive(Debug)]
struct LastCapture {
    /// Lines of the capture, without the last one if it is held back.
    lines: Vec<String>,
    held: Option<String>,
}

impl LastCapture {
    /// Returns the new lines in a capture, each ending with a line break.
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

/// Returns the index of the first new line in `after`, if the two captures can be aligned.
fn first_new(before: &[String], after: &[String]) -> Option<usize> {
    if before.is_empty() {
        return Some(0);
    }
    // Try again without the first line of the later capture, which may be the end of a longer line.
    for skip in 0..=1.min(after.len()) {
        let after = &after[skip..];
        for overwritten in 0..=MAX_OVERWRITTEN.min(before.len() - 1) {
            let unchanged = &before[..before.len() - overwritten];
            let overlap = MIN_OVERLAP.min(before.len());
            let scrolled = (0..=unchanged.len().saturating_sub(overlap)).find(|&from| {
                let rest = &unchanged[from..];
                rest.len() >= overlap && after.starts_with(rest)
            });
            if let Some(scrolled) = scrolled {
                return Some(skip + unchanged.len() - scrolled);
            }
        }
    }
    None
}

/// Returns the lines of `after` that `before` does not contain. Used if the captures cannot be aligned because the
/// screen was cleared.
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
    use std::time::Duration;

    use super::*;

    fn lines(text: &str) -> Vec<String> {
        text.split(' ').map(str::to_owned).collect()
    }

    /// Returns, for each capture but the first, its new lines joined with spaces.
    fn new_lines(captures: &[&str]) -> Vec<String> {
        let mut seen = LastCapture { lines: lines(captures[0]), held: None };
        let rest = captures[1..].iter();
        rest.map(|capture| seen.next(lines(capture)).trim_end().replace('\n', " ")).collect()
    }

    #[test]
    fn returns_only_new_lines() {
        // The pane grows. Its last line is held back until that line no longer changes.
        assert_eq!(new_lines(&["a b c $", "a b c d e $", "a b c d e $"]), ["d e", "$"]);
        // The pane scrolls: the oldest lines disappear.
        assert_eq!(new_lines(&["a b c d e", "c d e f g h", "c d e f g h"]), ["f g", "h"]);
        // The first line of the second capture is the end of a longer line.
        assert_eq!(new_lines(&["a b c d e", "gd c d e f g"]), ["f"]);
        // A progress bar counts as new text only after its last update.
        assert_eq!(
            new_lines(&["a b c 10%", "a b c 20%", "a b c 30% d e", "a b c 30% d e"]),
            ["", "30% d", "e"]
        );
        // An error that is already in the first capture is reported only when the program prints it again.
        assert_eq!(new_lines(&["a OOM b c", "a OOM b c"]), [""]);
        assert_eq!(new_lines(&["a OOM b c", "a OOM b c OOM x x"]), ["OOM x"]);
        // The screen is cleared. Lines that were shown before are not new.
        assert_eq!(new_lines(&["a b c d e f", "e f x y"]), ["x"]);
        // Text appears in an empty pane.
        assert_eq!(new_lines(&["", "a b"]), ["a"]);
    }

    #[test]
    fn aligns_long_captures_quickly() {
        let text =
            |from: usize| -> Vec<String> { (from..from + 2_000).map(|n| n.to_string()).collect() };
        let begun = std::time::Instant::now();
        assert_eq!(first_new(&text(0), &text(1_500)), Some(500));
        assert_eq!(first_new(&text(0), &text(5_000)), None);
        assert!(begun.elapsed() < Duration::from_secs(2));
    }
}
