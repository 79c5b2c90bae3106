//! Requests to the data source for what the screens show: the focused GPU, maps, holders, samples, arrivals and the past.

use gputop_model::holders::READING_INTERVAL;
use gputop_model::phases::PhaseRequest;
use gputop_model::process::ProcessKey;
use gputop_model::protocol::{Play, Request};
use gputop_model::units::{GpuUuid, Millis, Mono};

use crate::dashboard::why::WINDOW;
use crate::tui::app::App;
use crate::tui::screen::Screen;

/// Time after which samples are requested again if none have arrived.
const RESEND_INTERVAL: Millis = Millis(5_000);

/// The last requests for the screens of a view.
#[derive(Default)]
pub struct ScreenRequests {
    focus: Option<GpuUuid>,
    /// The requested map, and the sequence number of the frame for which it was requested.
    map: (Option<(ProcessKey, u32)>, u64),
    /// The process whose memory holders were requested, and the time of the request.
    holders: (Option<ProcessKey>, Mono),
    /// The process whose samples were requested, and the time of the request.
    sampled: (Option<ProcessKey>, Mono),
    /// True if arrivals at collectives are counted, and the sequence number of the frame for which that was requested.
    arrivals: (bool, u64),
    /// End of the time range of the latest request for a recording's history.
    past: Option<Mono>,
}

impl ScreenRequests {
    /// Returns the requests for a stack of screens, the last of which is on top and shows the map of a pool.
    pub fn follow(
        &mut self,
        stack: &[Box<dyn Screen>],
        map: Option<(ProcessKey, u32)>,
        app: &App,
    ) -> Vec<Request> {
        let mut requests = Vec::new();
        let focus = stack.last().and_then(|top| top.focus());
        if focus != self.focus {
            self.focus.clone_from(&focus);
            requests.push(Request::Focus(focus));
        }
        requests.extend(self.wanted_map(map, app));
        requests.extend(self.wanted_holders(stack, app));
        requests.extend(self.wanted_samples(stack, app));
        requests.extend(self.wanted_arrivals(stack, app));
        requests.extend(self.wanted_past(app));
        requests
    }

    /// Returns requests that cancel the pending work when another host is shown. [`Self::follow`] repeats the cancelled
    /// requests later.
    pub fn cancel(&mut self) -> Vec<Request> {
        let mut requests = Vec::new();
        if self.focus.take().is_some() {
            requests.push(Request::Focus(None));
        }
        if self.map.0.take().is_some() {
            requests.push(Request::Map(None));
        }
        if self.holders.0.take().is_some() {
            requests.push(Request::Holders(None));
        }
        if self.sampled.0.take().is_some() {
            requests.push(Request::Phases(None));
        }
        if std::mem::take(&mut self.arrivals.0) {
            requests.push(Request::Arrivals(false));
        }
        requests
    }

    /// Returns the map request for the screen on top. The request is repeated with every frame, and sent immediately
    /// when a different pool is shown.
    fn wanted_map(&mut self, map: Option<(ProcessKey, u32)>, app: &App) -> Option<Request> {
        let wanted = (map, app.host.frame.seq);
        let has_new_frame = wanted.0.is_some() && wanted.1 != self.map.1;
        let is_needed = has_new_frame || wanted.0 != self.map.0;
        self.map = wanted;
        is_needed.then_some(Request::Map(wanted.0))
    }

    /// Requests a holder reading when a holder screen opens, and again after [`READING_INTERVAL`]. Cancels the request
    /// when the last holder screen closes. A recording sends its readings without a request.
    fn wanted_holders(&mut self, stack: &[Box<dyn Screen>], app: &App) -> Option<Request> {
        if app.host.recording.is_some() {
            return None;
        }
        let wanted = stack.iter().rev().find_map(|screen| screen.holders());
        let now = app.host.frame.mono;
        let (requested, at) = self.holders;
        let is_due = wanted.is_some() && now.since(at) >= READING_INTERVAL;
        if wanted == requested && !is_due {
            return None;
        }
        self.holders = (wanted, now);
        Some(Request::Holders(wanted))
    }

    /// Requests samples of the process whose screen asks for them, and again if none arrive, because the source may have
    /// been restarted.
    fn wanted_samples(&mut self, stack: &[Box<dyn Screen>], app: &App) -> Option<Request> {
        if app.host.recording.is_some() {
            return None;
        }
        let wanted = stack.iter().rev().find_map(|screen| screen.sampled());
        let now = app.host.frame.mono;
        let (requested, at) = self.sampled;
        let is_due = now.since(at) >= RESEND_INTERVAL;
        let is_lost = is_due && wanted.is_some_and(|process| app.host.awaits_samples(process));
        if wanted == requested && !is_lost {
            return None;
        }
        self.sampled = (wanted, now);
        let request = |process| PhaseRequest { process, window: WINDOW };
        Some(Request::Phases(wanted.map(request)))
    }

    /// Requests that arrivals are counted while the screen on top asks for it. The request is repeated with every frame,
    /// because the source may have been restarted.
    fn wanted_arrivals(&mut self, stack: &[Box<dyn Screen>], app: &App) -> Option<Request> {
        let wanted = (stack.last().is_some_and(|top| top.counts_arrivals()), app.host.frame.seq);
        let before = std::mem::replace(&mut self.arrivals, wanted);
        let is_needed = wanted.0 != before.0 || (wanted.0 && wanted.1 != before.1);
        is_needed.then_some(Request::Arrivals(wanted.0))
    }

    /// Requests the recorded history needed by the charts. Each part is requested only once.
    fn wanted_past(&mut self, app: &App) -> Option<Request> {
        let wanted = app.host.missing_before();
        let is_new = wanted != std::mem::replace(&mut self.past, wanted);
        wanted.filter(|_| is_new).map(|before| Request::Play(Play::Past(before)))
    }
}
