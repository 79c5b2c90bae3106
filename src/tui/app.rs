//! The state of one session: the state of its host, and what belongs to the screen.

use gputop_model::incident_record::Track;
use gputop_model::protocol::Update;
use gputop_model::units::{Millis, Mono};

use super::density::Density;
use super::guide::Guide;
use super::keymap::Keymap;
use super::theme::Theme;
use crate::dashboard::host_state::HostState;
use crate::dashboard::recording::Recording;
use crate::dashboard::time_window::ScrollDirection;
use crate::incident::{Uid, WatchResult};

pub struct App {
    pub host: HostState,
    pub ui: Ui,
}

/// The appearance of the screens, the keys, and what is shown beside the host's state.
pub struct Ui {
    pub theme: Theme,
    pub keymap: Keymap,
    pub density: Density,
    /// True if facts show where they come from.
    pub shows_sources: bool,
    /// True if the terminal should report mouse clicks and wheel movements.
    pub mouse: bool,
    /// Interval between automatic probes while the probe screen is open.
    pub probe_interval: Option<Millis>,
    /// Guidance for new users.
    pub guide: Option<Guide>,
    /// Message on the bottom line, shown for a few seconds or until the next key press.
    pub message: Option<String>,
}

impl App {
    pub fn new(theme: Theme, keymap: Keymap, recording: Option<Recording>) -> Self {
        let ui = Ui {
            theme,
            keymap,
            density: Density::default(),
            shows_sources: false,
            mouse: true,
            probe_interval: None,
            guide: None,
            message: None,
        };
        Self { host: HostState::new(recording), ui }
    }

    pub fn update(&mut self, update: Update) {
        if let Some(message) = self.host.update(update) {
            self.ui.message = Some(message);
        }
    }

    /// Handles a result from the host's incident watcher. For a stored incident, returns the chart data around its
    /// time, so that the data can be stored too.
    pub fn take_watch_result(&mut self, result: WatchResult) -> Option<(Uid, Vec<Track>)> {
        match result {
            WatchResult::Error(why) => {
                self.ui.message = Some(why);
                None
            }
            WatchResult::Incident(record) => self.host.take_incident(*record),
        }
    }

    /// Scrolls the charts and tables, or shows a message if there is no data further back. `from` is the time at which
    /// unscrolled charts end, or `None` if they end at the current time.
    pub fn scroll(&mut self, direction: ScrollDirection, from: Option<Mono>) {
        if let Err(oldest) = self.host.scroll(direction, from) {
            let clock = self.ui.theme.clock(oldest, "%H:%M:%S");
            self.ui.message = Some(format!("no data before {clock}"));
        }
    }
}
