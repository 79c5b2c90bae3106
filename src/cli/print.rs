//! Standard output and standard error: printing, and the width and style of what is printed.

use color_eyre::Result;
use gputop_model::text::{Escaped, json_escaped};
use serde::Serialize;

use super::settings::has_terminal;
use super::startup_state;
use crate::export::explanation::Style;

/// Prints text to standard output, escaped so that file names, arguments and stored text cannot control the terminal.
pub fn print(text: &str) -> Result<()> {
    print_styled(&Escaped(text).to_string())
}

pub fn print_json(document: &impl Serialize) -> Result<()> {
    print_styled(&json_escaped(&(serde_json::to_string_pretty(document)? + "\n")))
}

/// Prints text that contains gputop's own escape sequences to standard output. The caller must escape all other text. A
/// closed pipe is not a failure.
pub fn print_styled(text: &str) -> Result<()> {
    write_out(text).map(drop)
}

/// Prints text like [`print_styled`]. Returns false if standard output is a pipe whose reader has closed it.
pub fn write_out(text: &str) -> Result<bool> {
    use std::io::Write;
    if startup_state::is_stdout_closed() {
        color_eyre::eyre::bail!(
            "cannot print: standard output is closed. Redirect it to a file or /dev/null"
        );
    }
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Prints a message to standard error, escaped in the same way as by `print`. A closed standard error is not a failure.
pub fn say(text: &str) {
    say_styled(&Escaped(text).to_string());
}

/// Prints a message that contains gputop's own escape sequences to standard error. The caller must escape all other
/// text.
pub fn say_styled(text: &str) {
    use std::io::Write;
    let _ = std::io::stderr().write_all(text.as_bytes());
}

pub fn erase_line() {
    say_styled("\r\x1b[2K");
}

/// Returns the maximum width of lines on standard output.
pub fn width() -> usize {
    width_of(has_terminal())
}

/// Returns the terminal's width, or 80 if the output is not a terminal.
pub fn width_of(is_terminal: bool) -> usize {
    terminal_size(is_terminal)
        .map_or(80, |(width, _)| if width == 0 { 80 } else { usize::from(width).clamp(40, 120) })
}

/// Returns the style of explanations on standard output.
pub fn style() -> Style {
    style_of(has_terminal())
}

/// Returns the terminal's width and height, or `None` if the output is not a terminal or its size is unknown.
pub fn terminal_size(is_terminal: bool) -> Option<(u16, u16)> {
    if is_terminal { crossterm::terminal::size().ok() } else { None }
}

pub fn style_of(is_terminal: bool) -> Style {
    let is_plain = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    Style {
        width: width_of(is_terminal),
        colour: is_terminal && !is_plain,
        height: terminal_size(is_terminal).map(|(_, height)| usize::from(height)),
    }
}
