//! Effects of a key or click beyond its own screen or menu.

use std::sync::Arc;

use super::clipboard::Copied;
use super::overlay::Overlay;
use super::screens::Screen;
use crate::model::document::Document;
use crate::model::incident::Incident;
use crate::protocol::Request;

/// The result of an action. [`View`](super::view::View) handles effects on its screens and passes the others on to the
/// event loop.
pub enum Effect {
    /// Handled; redraws the screen.
    Done,
    /// Not handled; the handler in the action table runs next.
    Ignored,
    Open(Box<dyn Screen>),
    Overlay(Box<Overlay>),
    /// Closes the overlay, or the screen if no overlay is open.
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
    /// Reconnects to the host with this index, or to the host on the screen if there is no index.
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
    /// Creates a message that explains why an action is not possible.
    fn from(result: Result<Self, String>) -> Self {
        result.unwrap_or_else(Self::Message)
    }
}
