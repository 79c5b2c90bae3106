//! Every picture that the documentation shows, in one place.

use gputop::tui::picture::svg;
use gputop::tui::theme::Palette;

use crate::screen_fixture;

pub struct Picture {
    name: &'static str,
    screen: &'static str,
    /// Seconds into the built-in recording.
    at: u64,
    size: (u16, u16),
}

pub const PICTURES: &[Picture] = &[
    Picture {
        name: "memory",
        screen: "memory",
        at: 98,
        size: (120, 40),
    },
    Picture {
        name: "overview",
        screen: "overview",
        at: 98,
        size: (120, 36),
    },
    Picture {
        name: "gpu",
        screen: "gpu",
        at: 140,
        size: (120, 40),
    },
];

impl Picture {
    pub fn path(&self) -> std::path::PathBuf {
        let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
        root.join("assets/screens")
            .join(format!("{}.svg", self.name))
    }

    pub fn draw(&self) -> String {
        let app = screen_fixture::app_at(screen_fixture::DEMO, self.at, Palette::Dark, false, true);
        svg(&screen_fixture::draw(
            &app,
            self.screen,
            self.size.0,
            self.size.1,
        ))
    }
}
