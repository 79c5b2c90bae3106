//! Effects that a key or click has outside the screen or menu that handles it.

use std::sync::Arc;

use super::clipboard::Copied;
use super::overlay::Overlay;
use super::screens::Screen;
use crate::model::document::Document;
use crate::model::incident::Incident;
use crate::protocol::Request;

/// Result of an action. [`View`](super::view::View) handles effects on its screens and passes the others on to the
/// event loop.
pub enum Effect {
    /// The action was handled; the screen is redrawn.
    Done,
    /// The action was not handled; its handler in the action table runs next.
    Ignored,
    Open(Box<dyn Screen>),
    Overlay(Box<Overlay>),
    /// Closes the overlay, or the screen if there is no overlay.
    Close,
    /// Shows an incident and marks it as read.
    Explain(Arc<Incident>),
    /// Folds or unfolds the group with this title.
    Fold(String),
    Message(String),
    Request(Request),
    /// Sends text to the clipboard.
    Copy(Copied),
    Write(Box<Document>),
    /// Saves the theme with this name in the configuration file.
    SaveTheme(&'static str),
    Host(usize),
    Hosts,
    /// Reconnects to the host with this index, or to the host on the screen if `None`.
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
    /// Converts an error into a message that explains why the action is not possible.
    fn from(result: Result<Self, String>) -> Self {
        result.unwrap_or_else(Self::Message)
    }
}
