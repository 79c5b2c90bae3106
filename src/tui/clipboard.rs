//! Copies short text to the clipboard of the user's terminal, which may be several ssh hops away.
//!
//! The terminal never confirms that it received the text, so the message only says that the text was sent. The text
//! takes one of two paths:
//!
//! - Inside tmux, `tmux load-buffer -w -` stores it in a paste buffer. tmux also forwards it to its own terminal if its
//!   option `set-clipboard` allows it (tmux 3.2; older versions only fill the buffer).
//! - Otherwise, gputop sends it to the terminal in an OSC 52 escape sequence. Many terminals accept it, some ask the
//!   user, and some ignore it.

use gputop_model::text::visible;

use super::tmux;

/// Maximum length of copied text, enough for typical command lines. xterm accepts about 70 KB, other terminals less.
const MAX_BYTES: usize = 8 << 10;
const MAX_LINE: usize = 4096;

/// Text to copy, with its description.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Copied {
    /// Description of the copied text, a noun phrase: `PID 418 and its command line`.
    pub what: String,
    pub text: String,
}

impl Copied {
    /// Makes text safe to paste: removes control characters except line endings, and limits the length.
    pub fn new(what: impl Into<String>, text: &str) -> Self {
        let mut what = what.into();
        let mut safe = String::new();
        for line in text.trim_end().split('\n') {
            let line = visible(line.trim_end().as_bytes(), MAX_LINE);
            let gap = usize::from(!safe.is_empty());
            if safe.len() + gap + line.len() > MAX_BYTES {
                what.push_str(" (truncated)");
                break;
            }
            safe.push_str(&"\n"[..gap]);
            safe.push_str(&line);
        }
        Self { what, text: safe }
    }

    /// Returns the message to show once the text has been sent to the terminal.
    pub fn sent_words(&self) -> String {
        format!("{} sent to the terminal, which may ignore it", self.what)
    }
}

/// The channel used to reach the clipboard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Clipboard {
    Tmux,
    Terminal,
}

/// Sends the text to tmux and returns a message for the user. Blocks, so it must not run on the UI task.
pub fn send_to_tmux(copied: &Copied) -> String {
    let what = &copied.what;
    match tmux::run(&["load-buffer", "-w", "-"], &copied.text) {
        Ok(_) => format!("{what} sent to tmux (prefix ] pastes it) and to the terminal"),
        // Retry without -w, which tmux before 3.2 does not support.
        Err(why) => match tmux::run(&["load-buffer", "-"], &copied.text) {
            Ok(_) => format!(
                "{what} sent to tmux only (prefix ] pastes it); forwarding requires tmux 3.2"
            ),
            Err(_) => format!("{what} not copied: {why}. Select the text by hand"),
        },
    }
}

/// Returns the escape sequence that sets the terminal's clipboard (xterm control sequences, OSC 52).
pub fn osc52(text: &str) -> String {
    format!("\x1b]52;c;{}\x07", base64(text.as_bytes()))
}

/// Encodes bytes as base64 (RFC 4648, section 4).
fn base64(bytes: &[u8]) -> String {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for chunk in bytes.chunks(3) {
        let at = |i: usize| u32::from(chunk.get(i).copied().unwrap_or(0));
        let bits = at(0) << 16 | at(1) << 8 | at(2);
        for i in 0..4 {
            let letter = LETTERS[(bits >> (18 - 6 * i) & 63) as usize];
            text.push(if i <= chunk.len() { char::from(letter) } else { '=' });
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_follows_the_rfc() {
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
    fn copied_text_is_sanitized_and_bounded() {
        let copied = Copied::new("it", "a\x1b[31m\n  b \r\n\x07c\n\n");
        assert_eq!(copied.text, "a^[[31m\n  b\n^Gc");
        let long = Copied::new("it", &"x".repeat(100_000)).text;
        assert_eq!(long.chars().count(), MAX_LINE);
        let many = Copied::new("it", &"line\n".repeat(100_000));
        assert!(many.text.len() <= MAX_BYTES && many.text.ends_with("line"));
        assert_eq!(many.what, "it (truncated)");
    }
}
