//! The stretch of time that charts show: how long it is and where it ends.
//!
//! By itself a chart ends now and goes with the time. Scrolled back it ends at a moment and stands there, whatever
//! comes in, until it is scrolled forward to now or `0` is pressed; its length stays as it was. Tables go on showing
//! now: the header says where the charts end, and so does every axis.
//!
//! In a recording *now* is the moment that it stands at. Scrolling moves the charts alone, as it does live; a seek
//! or a step begins where the charts end and takes the whole screen there, so the two never pull apart. `0` brings
//! the charts back first, pressed again it goes to the start of the recording.
//!
//! The charts of a recording reach as far back as those of a live day: what a jump did not bring is asked for when
//! it is to be drawn ([`TimeWindow::wants_before`]).

use crate::model::history::DAY;
use crate::model::units::{Millis, Mono};

/// Lengths of charts, shortest first.
pub const ZOOMS: &[Millis] = &[
    Millis(60_000),
    Millis(300_000),
    Millis(600_000),
    Millis(1_800_000),
    Millis(3_600_000),
    Millis(21_600_000),
    DAY,
];

/// Ten minutes.
const DEFAULT_ZOOM: usize = 2;

/// Which way charts are scrolled, a quarter of their length at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ScrollDirection {
    Back,
    Forward,
}

#[derive(Debug, Clone, Default)]
pub struct TimeWindow {
    /// Index into [`ZOOMS`] as the user chose it; without a choice charts grow with what is known.
    zoom: Option<usize>,
    /// Where charts end while they are scrolled back.
    end: Option<Mono>,
    /// How far back the history reaches without a hole.
    since: Option<Mono>,
    /// How far it goes on from there.
    until: Mono,
}

impl TimeWindow {
    /// Nothing is known any more; what the user chose stays.
    #[must_use]
    pub fn anew(&self) -> Self {
        Self {
            zoom: self.zoom,
            ..Self::default()
        }
    }

    /// The history goes on with a frame of this moment.
    pub fn goes_on(&mut self, moment: Mono) {
        self.since = Some(self.since.map_or(moment, |since| since.min(moment)));
        self.until = moment;
    }

    /// A recording jumped and tells of what came from `from` on. False when there is a hole before that, so that what
    /// was known is of no use.
    pub fn jumps(&mut self, from: Mono) -> bool {
        let follows = self
            .since
            .is_some_and(|since| (since..=self.until).contains(&from));
        let since = self.since.filter(|_| follows).unwrap_or(from);
        *self = Self {
            since: Some(since),
            until: from,
            ..self.anew()
        };
        follows
    }

    /// A recording tells of its past between these moments. False when the history does not begin there any more.
    pub fn fills(&mut self, before: Mono, from: Mono) -> bool {
        let follows = self.since == Some(before);
        if follows {
            self.since = Some(from);
        }
        follows
    }

    pub fn since(&self) -> Option<Mono> {
        self.since
    }

    pub fn length(&self, now: Mono) -> Millis {
        ZOOMS[self.zoom.unwrap_or_else(|| self.natural_zoom(now))]
    }

    /// The shortest that holds all there is, up to [`DEFAULT_ZOOM`].
    fn natural_zoom(&self, now: Mono) -> usize {
        let known = self.since.map_or(Millis(0), |since| now.since(since));
        ZOOMS[..DEFAULT_ZOOM]
            .iter()
            .position(|zoom| *zoom > known)
            .unwrap_or(DEFAULT_ZOOM)
    }

    /// One step longer (1) or shorter (-1); a chart that is scrolled back keeps its end.
    pub fn zoom_by(&mut self, step: isize, now: Mono) {
        let zoom = self.zoom.unwrap_or_else(|| self.natural_zoom(now));
        self.zoom = Some(zoom.saturating_add_signed(step).min(ZOOMS.len() - 1));
    }

    /// Where charts end, while they are scrolled back.
    pub fn end(&self) -> Option<Mono> {
        self.end
    }

    /// Scrolls from `from` (else from where charts end); nothing is known before `oldest`. False when there is
    /// nothing further that way.
    pub fn scroll(
        &mut self,
        way: ScrollDirection,
        from: Option<Mono>,
        now: Mono,
        oldest: Mono,
    ) -> bool {
        let length = self.length(now).0;
        let before = self.end.or(from).unwrap_or(now);
        let (step, first) = (length / 4, (oldest.0.saturating_add(length)).min(now.0));
        let end = match way {
            ScrollDirection::Back => before.0.saturating_sub(step).max(first).min(before.0),
            ScrollDirection::Forward => before.0 + step,
        };
        if end == before.0 {
            return false;
        }
        // By itself the length would change under the eye of who reads.
        self.zoom = self
            .zoom
            .or_else(|| ZOOMS.iter().position(|zoom| zoom.0 == length));
        self.end = Some(Mono(end)).filter(|end| *end < now);
        true
    }

    pub fn to_now(&mut self) {
        self.end = None;
    }

    /// The moment before which a recording is to tell more, when the charts reach further back than what is known.
    pub fn wants_before(&self, now: Mono, oldest: Mono) -> Option<Mono> {
        let end = self.end.unwrap_or(now);
        let from = Mono(end.0.saturating_sub(self.length(now).0)).max(oldest);
        self.since.filter(|since| from < *since)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: u64 = 60_000;

    fn of(minutes: u64) -> TimeWindow {
        let mut stretch = TimeWindow::default();
        stretch.goes_on(Mono(100 * MINUTE - minutes * MINUTE));
        stretch.goes_on(Mono(100 * MINUTE));
        stretch
    }

    #[test]
    fn scrolled_back_it_stands_and_keeps_its_length_until_it_is_now_again() {
        let now = Mono(100 * MINUTE);
        let oldest = Mono(92 * MINUTE);
        let mut stretch = of(8);
        let length = stretch.length(now);
        assert_eq!(length, Millis(10 * MINUTE));
        // There is no more than one sees.
        assert!(!stretch.scroll(ScrollDirection::Back, None, now, oldest));
        stretch.zoom_by(-1, now);
        assert!(stretch.scroll(ScrollDirection::Back, None, now, oldest));
        assert_eq!(stretch.end(), Some(Mono(100 * MINUTE - 75_000)));
        for _ in 0..10 {
            stretch.scroll(ScrollDirection::Back, None, now, oldest);
        }
        // The chart begins where the history does.
        assert_eq!(stretch.end(), Some(Mono(97 * MINUTE)));
        assert!(!stretch.scroll(ScrollDirection::Back, None, now, oldest));
        let later = Mono(200 * MINUTE);
        assert_eq!(stretch.length(later), Millis(5 * MINUTE));
        assert!(stretch.scroll(ScrollDirection::Forward, None, now, oldest));
        assert!(stretch.scroll(ScrollDirection::Forward, None, now, oldest));
        assert_eq!(stretch.end(), Some(Mono(97 * MINUTE + 150_000)));
        assert!(stretch.scroll(ScrollDirection::Forward, None, now, oldest));
        assert_eq!(stretch.end(), None);
        assert!(stretch.scroll(ScrollDirection::Back, None, now, oldest));
        stretch.to_now();
        assert_eq!(stretch.end(), None);
    }

    #[test]
    fn a_chart_of_what_has_ended_is_scrolled_from_its_end() {
        let now = Mono(100 * MINUTE);
        let mut stretch = of(100);
        let ended = Some(Mono(50 * MINUTE));
        assert!(stretch.scroll(ScrollDirection::Back, ended, now, Mono(0)));
        assert_eq!(stretch.end(), Some(Mono(50 * MINUTE - 150_000)));
    }

    #[test]
    fn more_is_wanted_only_when_it_is_to_be_drawn() {
        let (now, oldest) = (Mono(100 * MINUTE), Mono(0));
        let mut stretch = of(60);
        assert_eq!(stretch.wants_before(now, oldest), None);
        for _ in 0..3 {
            stretch.zoom_by(1, now);
        }
        let since = Mono(40 * MINUTE);
        assert_eq!(stretch.wants_before(now, oldest), Some(since));
        assert!(stretch.fills(since, Mono(25 * MINUTE)));
        assert_eq!(stretch.wants_before(now, oldest), Some(Mono(25 * MINUTE)));
        // Of a jump before.
        assert!(!stretch.fills(since, Mono(0)));
        assert!(stretch.fills(Mono(25 * MINUTE), Mono(0)));
        assert_eq!(stretch.wants_before(now, oldest), None);
    }

    #[test]
    fn a_jump_keeps_what_joins_and_nothing_else() {
        let mut stretch = of(60);
        assert!(stretch.jumps(Mono(95 * MINUTE)));
        assert_eq!(stretch.since(), Some(Mono(40 * MINUTE)));
        // What came after 95 was forgotten, though it had been known.
        assert!(!stretch.jumps(Mono(99 * MINUTE)));
        assert_eq!(stretch.since(), Some(Mono(99 * MINUTE)));
        assert!(!stretch.jumps(Mono(10 * MINUTE)));
    }
}
