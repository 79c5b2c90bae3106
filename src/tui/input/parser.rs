//! Parses the bytes sent by a terminal into events: `\x1b[5~` is PageUp, `\x1b[<0;3;4M` a click in column 3 of row 4.
//!
//! Supports xterm's control sequences (ctlseqs, "PC-Style Function Keys" and "Mouse Tracking") and the deviations of
//! rxvt, the Linux console and tmux. Skips the markers of a bracketed paste and treats the pasted text as typed, so an
//! unterminated paste is harmless.

use std::time::Duration;

use crossterm::event::{Event, KeyCode, KeyEvent, KeyModifiers};
use crossterm::event::{MouseButton, MouseEvent, MouseEventKind};

/// How long to wait after an escape character before treating it as the Esc key.
const ESCAPE_TIMEOUT: Duration = Duration::from_millis(25);
/// How long to wait for the rest of a longer escape sequence, which a slow connection may delay.
const SEQUENCE_TIMEOUT: Duration = Duration::from_millis(250);
/// Maximum length of supported escape sequences.
const MAX_SEQUENCE_BYTES: usize = 32;

const ESCAPE: u8 = 0x1b;
const INTERRUPT: u8 = 0x03;

pub(super) fn is_interrupt(event: &Event) -> bool {
    *event == control('c')
}

/// A parser for terminal input.
#[derive(Debug, Default)]
pub(super) struct Parser {
    /// Bytes of an incomplete sequence or character.
    pending: Vec<u8>,
}

/// Result of parsing a byte sequence.
enum Parsed {
    Unfinished,
    /// A complete sequence, with `None` if it is unsupported.
    Whole(Option<Event>),
    /// A sequence whose last byte is not allowed at that position.
    Broken,
}

impl Parser {
    pub(super) fn advance(&mut self, bytes: &[u8], push: impl Fn(Event)) {
        for &byte in bytes {
            if byte == INTERRUPT {
                self.give_up(&push);
                push(control('c'));
                continue;
            }
            self.pending.push(byte);
            match parse(&self.pending) {
                Parsed::Unfinished if self.pending.len() < MAX_SEQUENCE_BYTES => {}
                Parsed::Unfinished => self.pending.clear(),
                Parsed::Whole(event) => {
                    self.pending.clear();
                    event.into_iter().for_each(&push);
                }
                Parsed::Broken => {
                    self.pending.pop();
                    self.give_up(&push);
                    // Parse the byte as the start of a new sequence. This cannot fail again, because a single byte is
                    // never an invalid sequence.
                    self.pending.push(byte);
                    if let Parsed::Whole(event) = parse(&self.pending) {
                        self.pending.clear();
                        event.into_iter().for_each(&push);
                    }
                }
            }
        }
    }

    /// Returns how long to wait for the rest of an incomplete sequence.
    pub(super) fn timeout(&self) -> Option<Duration> {
        match self.pending.as_slice() {
            [] => None,
            [ESCAPE] => Some(ESCAPE_TIMEOUT),
            _ => Some(SEQUENCE_TIMEOUT),
        }
    }

    /// Ends an incomplete sequence: a single escape character becomes the Esc key, and a longer sequence is dropped.
    pub(super) fn give_up(&mut self, push: impl Fn(Event)) {
        if self.pending == [ESCAPE] {
            push(key(KeyCode::Esc, KeyModifiers::NONE));
        }
        self.pending.clear();
    }
}

fn parse(bytes: &[u8]) -> Parsed {
    match bytes {
        [] | [ESCAPE] => Parsed::Unfinished,
        // Two escape characters mean Esc pressed twice, not Alt+Esc.
        [ESCAPE, ESCAPE, ..] => Parsed::Broken,
        [ESCAPE, b'[', rest @ ..] => parse_csi(rest),
        [ESCAPE, b'O'] => Parsed::Unfinished,
        [ESCAPE, b'O', last] if is_control(*last) => Parsed::Broken,
        [ESCAPE, b'O', last] => {
            Parsed::Whole(letter_key(*last).map(KeyEvent::from).map(Event::Key))
        }
        [ESCAPE, rest @ ..] => match parse(rest) {
            Parsed::Whole(event) => Parsed::Whole(event.map(with_alt)),
            other => other,
        },
        [byte] if is_control(*byte) => Parsed::Whole(Some(control_key(*byte))),
        _ => parse_character(bytes),
    }
}

fn is_control(byte: u8) -> bool {
    byte < 0x20 || byte == 0x7f
}

fn key(code: KeyCode, modifiers: KeyModifiers) -> Event {
    Event::Key(KeyEvent::new(code, modifiers))
}

fn control(character: char) -> Event {
    key(KeyCode::Char(character), KeyModifiers::CONTROL)
}

fn with_alt(event: Event) -> Event {
    match event {
        Event::Key(mut key) => {
            key.modifiers |= KeyModifiers::ALT;
            Event::Key(key)
        }
        other => other,
    }
}

fn control_key(byte: u8) -> Event {
    let plain = |code| key(code, KeyModifiers::NONE);
    match byte {
        b'\r' => plain(KeyCode::Enter),
        b'\t' => plain(KeyCode::Tab),
        0x7f => plain(KeyCode::Backspace),
        0 => control(' '),
        1..=0x1a => control(char::from(byte - 1 + b'a')),
        _ => control(char::from(byte.wrapping_sub(0x1c).wrapping_add(b'4'))),
    }
}

fn parse_character(bytes: &[u8]) -> Parsed {
    match std::str::from_utf8(bytes) {
        Ok(text) => Parsed::Whole(text.chars().next().map(character_key)),
        // Wait for more bytes: an error without a length means that the UTF-8 character is incomplete.
        Err(error) if error.error_len().is_none() => Parsed::Unfinished,
        Err(_) if bytes.len() > 1 => Parsed::Broken,
        Err(_) => Parsed::Whole(None),
    }
}

fn character_key(character: char) -> Event {
    let modifiers = if character.is_uppercase() { KeyModifiers::SHIFT } else { KeyModifiers::NONE };
    key(KeyCode::Char(character), modifiers)
}

/// Parses the bytes after `\x1b[`.
fn parse_csi(rest: &[u8]) -> Parsed {
    let Some((&last, before)) = rest.split_last() else {
        return Parsed::Unfinished;
    };
    match (before, last) {
        // `\x1b[[A` to `\x1b[[E`: F1 to F5 on the Linux console.
        ([], b'[') => Parsed::Unfinished,
        ([b'['], b'A'..=b'E') => {
            Parsed::Whole(Some(key(KeyCode::F(1 + last - b'A'), KeyModifiers::NONE)))
        }
        // A mouse report from a terminal without SGR support: button, column and row, one byte each.
        ([], b'M') => Parsed::Unfinished,
        ([b'M', report @ ..], _) if last >= 0x20 => match report {
            &[button, column] => Parsed::Whole(mouse(
                u16::from(button.saturating_sub(32)),
                u16::from(column.saturating_sub(32)),
                u16::from(last.saturating_sub(32)),
                false,
            )),
            _ => Parsed::Unfinished,
        },
        // Parameter and intermediate bytes, which do not end a sequence.
        (_, 0x20..=0x3f) => Parsed::Unfinished,
        (_, 0x40..=0x7e) => Parsed::Whole(csi_event(before, last)),
        _ => Parsed::Broken,
    }
}

fn csi_event(parameters: &[u8], last: u8) -> Option<Event> {
    let text = std::str::from_utf8(parameters).ok()?;
    if let Some(report) = text.strip_prefix('<') {
        let mut numbers = report.split(';').map(|number| number.parse().ok());
        let [button, column, row] = [numbers.next()??, numbers.next()??, numbers.next()??];
        return match last {
            b'M' => mouse(button, column, row, false),
            b'm' => mouse(button, column, row, true),
            _ => None,
        };
    }
    // Parse parameters such as `1;5A`. Sub-parameters (`1;5:3A`) are ignored.
    let mut numbers = text
        .split(';')
        .map(|number| number.split(':').next().unwrap_or_default().parse::<u32>().ok());
    let first = numbers.next().flatten();
    let modifiers = modifiers(numbers.next().flatten().unwrap_or(1));
    let code = match last {
        b'~' => numbered_key(first?)?,
        b'u' => return unicode_key(first?, modifiers),
        b'Z' => return Some(key(KeyCode::BackTab, modifiers | KeyModifiers::SHIFT)),
        _ => letter_key(last)?,
    };
    Some(key(code, modifiers))
}

/// Parses a modifier parameter, which is 1 plus bits for Shift, Alt, Control and Super.
fn modifiers(parameter: u32) -> KeyModifiers {
    let bits = parameter.saturating_sub(1);
    let each = [
        (1, KeyModifiers::SHIFT),
        (2, KeyModifiers::ALT),
        (4, KeyModifiers::CONTROL),
        (8, KeyModifiers::SUPER),
    ];
    let set = each.into_iter().filter(|(bit, _)| bits & bit != 0);
    set.fold(KeyModifiers::NONE, |all, (_, modifier)| all | modifier)
}

fn letter_key(last: u8) -> Option<KeyCode> {
    Some(match last {
        b'A' => KeyCode::Up,
        b'B' => KeyCode::Down,
        b'C' => KeyCode::Right,
        b'D' => KeyCode::Left,
        b'F' => KeyCode::End,
        b'H' => KeyCode::Home,
        b'P'..=b'S' => KeyCode::F(1 + last - b'P'),
        _ => return None,
    })
}

fn numbered_key(number: u32) -> Option<KeyCode> {
    let function = |first: u8, since: u32| {
        let number = u32::from(first) + number - since;
        u8::try_from(number).ok().map(KeyCode::F)
    };
    Some(match number {
        1 | 7 => KeyCode::Home,
        2 => KeyCode::Insert,
        3 => KeyCode::Delete,
        4 | 8 => KeyCode::End,
        5 => KeyCode::PageUp,
        6 => KeyCode::PageDown,
        11..=15 => return function(1, 11),
        17..=21 => return function(6, 17),
        23..=26 => return function(11, 23),
        28..=29 => return function(15, 28),
        31..=34 => return function(17, 31),
        _ => return None,
    })
}

/// Returns the key for a code point sent by tmux (`extended-keys`) or xterm (`modifyOtherKeys`).
fn unicode_key(code: u32, modifiers: KeyModifiers) -> Option<Event> {
    let code = match char::from_u32(code)? {
        '\x1b' => KeyCode::Esc,
        '\r' => KeyCode::Enter,
        '\t' if modifiers.contains(KeyModifiers::SHIFT) => KeyCode::BackTab,
        '\t' => KeyCode::Tab,
        '\x7f' => KeyCode::Backspace,
        character if character.is_control() => return None,
        character => KeyCode::Char(character),
    };
    Some(key(code, modifiers))
}

/// Returns the event for a mouse report. Column and row are 1-based. The two lowest bits of `button` are the button
/// number. The higher bits are flags: 4 for Shift, 8 for Alt, 16 for Control, 32 for movement, 64 for the wheel.
fn mouse(button: u16, column: u16, row: u16, is_release: bool) -> Option<Event> {
    let is_moved = button & 32 != 0;
    let number = (button & 3) | ((button & 0xc0) >> 4);
    let pressed = match number {
        0 => Some(MouseButton::Left),
        1 => Some(MouseButton::Middle),
        2 => Some(MouseButton::Right),
        _ => None,
    };
    let kind = match (number, pressed) {
        (_, Some(button)) if is_release => MouseEventKind::Up(button),
        (_, Some(button)) if is_moved => MouseEventKind::Drag(button),
        (_, Some(button)) => MouseEventKind::Down(button),
        (3, _) if !is_moved => MouseEventKind::Up(MouseButton::Left),
        (3..=5, _) if is_moved => MouseEventKind::Moved,
        (4, _) => MouseEventKind::ScrollUp,
        (5, _) => MouseEventKind::ScrollDown,
        (6, _) => MouseEventKind::ScrollLeft,
        (7, _) => MouseEventKind::ScrollRight,
        _ => return None,
    };
    let each = [(4, KeyModifiers::SHIFT), (8, KeyModifiers::ALT), (16, KeyModifiers::CONTROL)];
    let held = each.into_iter().filter(|(bit, _)| button & bit != 0);
    Some(Event::Mouse(MouseEvent {
        kind,
        column: column.checked_sub(1)?,
        row: row.checked_sub(1)?,
        modifiers: held.fold(KeyModifiers::NONE, |all, (_, modifier)| all | modifier),
    }))
}

#[cfg(test)]
mod tests;
