//! Redaction of text from other processes, before it is shown, stored or sent.
//!
//! Environment variables show their value only if they are on an allow-list. Command lines and log lines stay readable,
//! but without their secrets, which are recognized by:
//!
//! - the name of a variable, flag, header or field (`name.rs`) and what connects it with a value
//!   (`context.rs`, `notation.rs`, `prose.rs`), also across lines and columns (`layout.rs`), or the program that takes it
//!   as an argument (`flag.rs`, `tool.rs`, `pipe.rs`);
//! - their form: credentials in URLs (`url.rs`), the prefix of an issuer (`issuer.rs`), private keys (`key_block.rs`);
//! - their randomness, for long tokens (`random.rs`).
//!
//! Placeholders, references to a secret elsewhere, and public content and identifiers stay readable (`harmless.rs`).
//!
//! Text is also read without the colours of a terminal and without the escapes of JSON, URLs and markup (`view.rs`), and
//! across the line breaks of a terminal (`wrap.rs`). `tests/data/redaction.txt` lists recognized forms.
//!
//! `--lr 3e-4 --api-key 8f2c… https://ana:pw@host/x` becomes `--lr 3e-4 --api-key *** https://***@host/x`.
//!
//! When in doubt, a value is hidden, because a leaked secret is worse than a hidden word. Redaction works on bytes and
//! runs before text is truncated or escaped, because a truncated token may not be recognized.

mod command;
mod context;
mod environment;
mod flag;
mod free_text;
mod harmless;
mod holders;
mod incident;
mod issuer;
mod key_block;
mod layout;
mod name;
mod notation;
mod pipe;
mod prose;
mod random;
mod tool;
mod url;
mod value;
mod view;
mod wrap;

use std::borrow::Cow;

use self::view::View;

pub use self::command::command;
pub use self::environment::variable;
pub use self::free_text::{arguments, text};
pub use self::holders::holders;
pub use self::incident::incident;

/// Returns the text without the sequences of a terminal that colour it or move the cursor.
pub fn without_sequences(text: &[u8]) -> Cow<'_, [u8]> {
    View::without_sequences(text).map_or(Cow::Borrowed(text), |view| Cow::Owned(view.text))
}

#[cfg(test)]
mod tests;
