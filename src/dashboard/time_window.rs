//! The time window for charts: its length and its end.
//!
//! By default, charts end at the current time and move with it. Once scrolled back, their end stays fixed until they
//! are scrolled forward to now or `0` is pressed. Their length does not change. Tables show the same time as the charts
//! if that frame is retained (`past_frames`), or current data if it is not. The header states which time is shown.
//!
//! In a recording, *now* is the playback position. The keys that scroll move the playback position instead, so that
//! there is only one kind of rewind.
//!
//! The charts of a recording cover up to a day, like live charts. If a jump did not load all of that history, the
//! missing part is requested when it is needed ([`TimeWindow::missing_before`]).

use gputop_model::history::DAY;
use gputop_model::units::{Millis, Mono};

/// Available chart lengths, shortest first.
pub const ZOOMS: &[Millis] = &[
    Millis(60_000),
    Millis(120_000),
    Millis(180_000),
    Millis(300_000),
    Millis(600_000),
    Millis(1_800_000),
    Millis(3_600_000),
    Millis(21_600_000),
    DAY,
];

/// Index of the maximum length chosen automatically: ten minutes.
const DEFAULT_ZOOM: usize = 4;

/// A scroll direction. Each step is a quarter of the charts' length.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ScrollDirection {
    Back,
    Forward,
}

/// The time window of all charts.
#[derive(Debug, Clone, Default)]
pub struct TimeWindow {
    /// Index into [`ZOOMS`] if chosen by the user. If not set, charts grow with the available history.
    zoom: Option<usize>,
    /// Minimum automatic zoom: that before a jump, so that charts do not become shorter when a recording jumps back.
    min_zoom: usize,
    /// End of the charts while they are scrolled back.
    end: Option<Mono>,
    /// Start of the contiguous history.
    since: Option<Mono>,
    /// End of the contiguous history. In a recording, it may be later than the playback position.
    until: Mono,
}

/// The part of the history that is still valid after a jump.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Retained {
    All,
    /// The history before the start of the history that the jump supplies.
    Earlier,
    Nothing,
}

impl TimeWindow {
    /// Returns a window without history but with the user's chosen length.
    #[must_use]
    pub fn reset(&self) -> Self {
        Self { zoom: self.zoom, min_zoom: self.min_zoom, ..Self::default() }
    }

    /// Extends the history to the time of a new frame.
    pub fn extend(&mut self, time: Mono) {
        self.since = Some(self.since.map_or(time, |since| since.min(time)));
        self.until = self.until.max(time);
    }

    /// Handles a jump within a recording. The recording then supplies summaries of the history from `from` on, and frames from
    /// `frames_from` on. Everything is retained if it replaces the summaries, because it is more precise. Nothing is
    /// retained if there is a gap between the known history and `from`.
    pub fn jump(&mut self, from: Mono, frames_from: Mono) -> Retained {
        let retained = match (self.covers(from), self.covers(frames_from)) {
            (true, true) => Retained::All,
            (true, false) => Retained::Earlier,
            (false, _) => Retained::Nothing,
        };
        self.min_zoom = self.automatic_zoom(self.until);
        let since = self.since.filter(|_| retained != Retained::Nothing).unwrap_or(from);
        let until = if retained == Retained::All { self.until } else { from };
        *self = Self { since: Some(since), until, ..self.reset() };
        retained
    }

    /// Prepends the history between `from` and `before`. Returns false if the history no longer starts at `before`.
    pub fn prepend(&mut self, before: Mono, from: Mono) -> bool {
        let is_contiguous = self.since == Some(before);
        if is_contiguous {
            self.since = Some(from);
        }
        is_contiguous
    }

    /// Returns true if the history up to `time` is known without a gap.
    pub fn covers(&self, time: Mono) -> bool {
        self.since.is_some_and(|since| (since..=self.until).contains(&time))
    }

    pub fn since(&self) -> Option<Mono> {
        self.since
    }

    pub fn length(&self, now: Mono) -> Millis {
        ZOOMS[self.zoom.unwrap_or_else(|| self.automatic_zoom(now))]
    }

    /// Returns the time by which the scroll keys move: a quarter of the charts' length.
    pub fn step(&self, now: Mono) -> Millis {
        Millis(self.length(now).0 / 4)
    }

    /// Returns the shortest length that covers the available history, up to [`DEFAULT_ZOOM`].
    fn automatic_zoom(&self, now: Mono) -> usize {
        let known = self.since.map_or(Millis(0), |since| now.since(since));
        let zoom = ZOOMS[..DEFAULT_ZOOM].iter().position(|zoom| *zoom > known);
        zoom.unwrap_or(DEFAULT_ZOOM).max(self.min_zoom)
    }

    /// Makes charts one step longer (1) or shorter (-1). Charts that are scrolled back keep their end time.
    pub fn zoom_by(&mut self, step: isize, now: Mono) {
        let zoom = self.zoom.unwrap_or_else(|| self.automatic_zoom(now));
        self.zoom = Some(zoom.saturating_add_signed(step).min(ZOOMS.len() - 1));
    }

    /// Returns the time at the right edge of the charts if they are scrolled back.
    pub fn end(&self) -> Option<Mono> {
        self.end
    }

    /// Scrolls the charts, starting at `from` if they are not scrolled yet. Their end does not move before `first`.
    /// Returns false if there is no more history in that direction.
    pub fn scroll(
        &mut self,
        direction: ScrollDirection,
        from: Option<Mono>,
        now: Mono,
        first: Mono,
    ) -> bool {
        let length = self.length(now).0;
        let before = self.end.or(from).unwrap_or(now);
        let step = self.step(now).0;
        let end = match direction {
            ScrollDirection::Back => before.0.saturating_sub(step).max(first.0).min(before.0),
            ScrollDirection::Forward => before.0 + step,
        };
        if end == before.0 {
            return false;
        }
        // Fix the length, because it would otherwise change while the user is reading.
        self.zoom = self.zoom.or_else(|| ZOOMS.iter().position(|zoom| zoom.0 == length));
        self.end = Some(Mono(end)).filter(|end| *end < now);
        true
    }

    /// Ends the charts at `time`, or at now if that is not later. They keep their length.
    pub fn scroll_to(&mut self, time: Mono, now: Mono, first: Mono) {
        let length = self.length(now).0;
        self.zoom = self.zoom.or_else(|| ZOOMS.iter().position(|zoom| zoom.0 == length));
        self.end = Some(time.max(first)).filter(|end| *end < now);
    }

    /// Scrolls the charts to now.
    pub fn to_now(&mut self) {
        self.end = None;
    }

    /// Returns the time before which a recording must supply more history, if the charts start before the known history.
    pub fn missing_before(&self, now: Mono, oldest: Mono) -> Option<Mono> {
        let end = self.end.unwrap_or(now);
        let from = Mono(end.0.saturating_sub(self.length(now).0)).max(oldest);
        self.since.filter(|since| from < *since)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: u64 = 60_000;

    /// Returns a window with this many minutes of history, ending at minute 100.
    fn window_of(minutes: u64) -> TimeWindow {
        let mut window = TimeWindow::default();
        window.extend(Mono(100 * MINUTE - minutes * MINUTE));
        window.extend(Mono(100 * MINUTE));
        window
    }

    #[test]
    fn scrolled_charts_keep_their_end_and_length_until_they_return_to_now() {
        let now = Mono(100 * MINUTE);
        let mut window = window_of(8);
        let length = window.length(now);
        assert_eq!(length, Millis(10 * MINUTE));
        assert!(!window.scroll(ScrollDirection::Back, None, now, now));
        window.zoom_by(-1, now);
        let first = Mono(97 * MINUTE);
        assert!(window.scroll(ScrollDirection::Back, None, now, first));
        assert_eq!(window.end(), Some(Mono(100 * MINUTE - 75_000)));
        for _ in 0..10 {
            window.scroll(ScrollDirection::Back, None, now, first);
        }
        assert_eq!(window.end(), Some(first));
        assert!(!window.scroll(ScrollDirection::Back, None, now, first));
        let later = Mono(200 * MINUTE);
        assert_eq!(window.length(later), Millis(5 * MINUTE));
        assert!(window.scroll(ScrollDirection::Forward, None, now, first));
        assert!(window.scroll(ScrollDirection::Forward, None, now, first));
        assert_eq!(window.end(), Some(Mono(97 * MINUTE + 150_000)));
        assert!(window.scroll(ScrollDirection::Forward, None, now, first));
        assert_eq!(window.end(), None);
        assert!(window.scroll(ScrollDirection::Back, None, now, first));
        window.to_now();
        assert_eq!(window.end(), None);
    }

    #[test]
    fn charts_of_an_exited_process_are_scrolled_from_its_exit() {
        let now = Mono(100 * MINUTE);
        let mut window = window_of(100);
        let ended = Some(Mono(50 * MINUTE));
        assert!(window.scroll(ScrollDirection::Back, ended, now, Mono(0)));
        assert_eq!(window.end(), Some(Mono(50 * MINUTE - 150_000)));
    }

    #[test]
    fn older_history_is_requested_only_when_visible() {
        let (now, oldest) = (Mono(100 * MINUTE), Mono(0));
        let mut window = window_of(60);
        assert_eq!(window.missing_before(now, oldest), None);
        for _ in 0..3 {
            window.zoom_by(1, now);
        }
        let since = Mono(40 * MINUTE);
        assert_eq!(window.missing_before(now, oldest), Some(since));
        assert!(window.prepend(since, Mono(25 * MINUTE)));
        assert_eq!(window.missing_before(now, oldest), Some(Mono(25 * MINUTE)));
        // A response to a request made before a jump is ignored.
        assert!(!window.prepend(since, Mono(0)));
        assert!(window.prepend(Mono(25 * MINUTE), Mono(0)));
        assert_eq!(window.missing_before(now, oldest), None);
    }

    #[test]
    fn a_jump_retains_only_contiguous_history() {
        let mut window = window_of(60);
        let minute = |minute: u64| Mono(minute * MINUTE);
        assert_eq!(window.jump(minute(95), minute(96)), Retained::All);
        assert_eq!(window.since(), Some(minute(40)));
        // The history up to minute 100 is still known.
        assert_eq!(window.jump(minute(97), minute(99)), Retained::All);
        assert_eq!(window.jump(minute(98), minute(101)), Retained::Earlier);
        assert_eq!(window.since(), Some(minute(40)));
        // The history after minute 98 was discarded by the previous jump.
        assert_eq!(window.jump(minute(99), minute(99)), Retained::Nothing);
        assert_eq!(window.since(), Some(minute(99)));
        assert_eq!(window.jump(minute(10), minute(11)), Retained::Nothing);
    }
}
