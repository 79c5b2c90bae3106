//! The figures as text to send to a colleague, with the command that reads them again.

use std::fmt::Write as _;

use super::Shown;
use super::figures::down;
use super::title::process_name;
use crate::model::units::Bytes;
use crate::tui::clipboard::Copied;

impl Shown<'_> {
    pub(super) fn copied(&self) -> Copied {
        let pid = self.screen.process.pid;
        let name = self
            .screen
            .row(self.app)
            .map_or("process".into(), process_name);
        let device = match self.gpu {
            Some(gpu) => format!("GPU {} {}", gpu.index, gpu.name),
            None => format!("cuda:{}", self.pool.ordinal),
        };
        let clock = self.theme.clock(self.app.frame.time, "%Y-%m-%d %H:%M:%S");
        let mut text = format!("{name} {pid}  {device}  {}  {clock}\n", self.pool.library);
        let _ = writeln!(text, "{}", self.figures.headline());
        let _ = writeln!(text, "{:<12}  {:<39}{:>9}{:>9}", "", "", "GiB", "PEAK");
        for line in self.lines() {
            let (name, words) = (line.name, line.description);
            let _ = writeln!(
                text,
                "{name:<12}  {words:<39}{:>9}{:>9}  {}",
                line.size, line.peak, line.compare
            );
        }
        let size = |size: Option<Bytes>| size.map_or(self.theme.glyphs.absent.into(), down);
        let fits = &self.figures.fits;
        let (cache, driver, flushed) = (size(fits.cache), size(fits.driver), size(fits.flushed));
        let counters = self.counters();
        let _ = writeln!(
            text,
            "FITS cache {cache}   driver {driver}   after flush {flushed}   {counters}"
        );
        let _ = writeln!(text, "gputop allocator {pid}");
        Copied::new(format!("the memory of PID {pid}"), &text)
    }
}
