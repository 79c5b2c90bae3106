//! A short text on its way to the clipboard of the person in front of the screen, who may be several machines away.
//!
//! Nobody confirms that it arrived, so what is said is "sent", and the text stays in sight to be marked by hand:
//!
//! - inside tmux, `tmux load-buffer -w -` puts it into a paste buffer, and tmux hands it on to its own terminal as far
//!   as its option `set-clipboard` lets it (tmux 3.2; an older one gets the buffer alone);
//! - else the escape sequence OSC 52 asks the terminal for it, which many take, some ask about and some ignore.

use super::tmux;
use crate::model::text::visible;

/// Enough for any command line; xterm takes no more than some 70 KB, others less.
const MAX_BYTES: usize = 8 << 10;
const MAX_LINE: usize = 4096;

/// What a key copies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Copied {
    /// A noun phrase: `PID 418 and its command line`.
    pub what: String,
    pub text: String,
}

impl Copied {
    /// Text that does nothing wherever it is pasted but what it says: no control characters but line ends, and a
    /// bounded length.
    pub fn new(what: impl Into<String>, text: &str) -> Self {
        let mut what = what.into();
        let mut kept = String::new();
        for line in text.trim_end().split('\n') {
            let line = visible(line.trim_end().as_bytes(), MAX_LINE);
            let gap = usize::from(!kept.is_empty());
            if kept.len() + gap + line.len() > MAX_BYTES {
                what.push_str(", cut: only the beginning");
                break;
            }
            kept.push_str(&"\n"[..gap]);
            kept.push_str(&line);
        }
        Self { what, text: kept }
    }
}

/// How a text gets there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Clipboard {
    Tmux,
    Terminal,
}

/// Hands the text to tmux and waits for it, so not for the UI's task; returns what to tell the user.
pub fn send_to_tmux(copied: &Copied) -> String {
    match tmux::run(&["load-buffer", "-w", "-"], &copied.text) {
        Ok(_) => "sent to tmux (prefix ] pastes it) and on to its terminal".into(),
        // Before 3.2 there was no -w.
        Err(why) => match tmux::run(&["load-buffer", "-"], &copied.text) {
            Ok(_) => "sent to tmux (prefix ] pastes it), too old to tell its terminal".into(),
            Err(_) => format!("not sent, mark the text by hand: {why}"),
        },
    }
}

/// The sequence that asks a terminal to take the text (xterm's control sequences, OSC 52).
pub fn osc52(text: &str) -> String {
    format!("\x1b]52;c;{}\x07", base64(text.as_bytes()))
}

/// RFC 4648, section 4.
fn base64(bytes: &[u8]) -> String {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for chunk in bytes.chunks(3) {
        let at = |i: usize| u32::from(chunk.get(i).copied().unwrap_or(0));
        let bits = at(0) << 16 | at(1) << 8 | at(2);
        for i in 0..4 {
            let letter = LETTERS[(bits >> (18 - 6 * i) & 63) as usize];
            text.push(if i <= chunk.len() {
                char::from(letter)
            } else {
                '='
            });
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_is_that_of_the_rfc() {
        let table = [
            ("", ""),
            ("f", "Zg=="),
            ("fo", "Zm8="),
            ("foo", "Zm9v"),
            ("foobar", "Zm9vYmFy"),
            ("\u{fb}\u{ff}", "w7vDvw=="),
        ];
        for (text, expected) in table {
            assert_eq!(base64(text.as_bytes()), expected, "{text:?}");
        }
        assert_eq!(osc52("foo"), "\x1b]52;c;Zm9v\x07");
    }

    #[test]
    fn what_is_copied_is_harmless_and_bounded() {
        let copied = Copied::new("it", "a\x1b[31m\n  b \r\n\x07c\n\n");
        assert_eq!(copied.text, "a^[[31m\n  b\n^Gc");
        let long = Copied::new("it", &"x".repeat(100_000)).text;
        assert_eq!(long.chars().count(), MAX_LINE);
        let many = Copied::new("it", &"line\n".repeat(100_000));
        assert!(many.text.len() <= MAX_BYTES && many.text.ends_with("line"));
        assert_eq!(many.what, "it, cut: only the beginning");
    }
}
