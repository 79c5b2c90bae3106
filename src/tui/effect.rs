//! Effects of a key or a click beyond its own screen or menu.

use std::sync::Arc;

use super::clipboard::Copied;
use super::overlay::Overlay;
use super::screens::Screen;
use crate::model::document::Document;
use crate::model::incident::Incident;
use crate::protocol::Request;

/// The result of an action. [`View`](super::view::View) performs what concerns its screens, and passes the rest on to the
/// event loop.
pub enum Effect {
    /// Handled; the screen is drawn again.
    Done,
    /// Not handled, so that the handler in the action table runs.
    Ignored,
    Open(Box<dyn Screen>),
    Overlay(Box<Overlay>),
    /// Closes the overlay or else the screen.
    Close,
    /// Shows the incident and marks it as read.
    Explain(Arc<Incident>),
    /// Collapses or expands the group with this title.
    Fold(String),
    Message(String),
    Request(Request),
    /// Shows the text and sends it to the clipboard.
    Copy(Copied),
    Write(Box<Document>),
    /// Saves the theme with this name in the configuration file.
    SaveTheme(&'static str),
    /// Shows the host with this index.
    Host(usize),
    /// Shows the host list.
    Hosts,
    /// Reconnects to the host with this index, or to the host on the screen.
    Connect(Option<usize>),
    /// Leaves the first screen of a host.
    Leave,
    Quit,
    Suspend,
    Redraw,
}

impl From<Overlay> for Effect {
    fn from(overlay: Overlay) -> Self {
        Self::Overlay(Box::new(overlay))
    }
}

impl From<Result<Self, String>> for Effect {
    /// Shows the reason why an action is not possible.
    fn from(result: Result<Self, String>) -> Self {
        result.unwrap_or_else(Self::Message)
    }
}
