//! Results of a GPU probe: side-by-side histograms for the driver, the request pattern and the process. Below them are
//! the results of each allocator policy, and a heat map of earlier probes.

use std::sync::Arc;

use gputop_allocator::fragmentation::Bucket;
use gputop_model::probe::{Bin, Outcome, PatternResult, Probe};
use gputop_model::protocol::Request;
use gputop_model::units::{GpuUuid, Mono};
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;

use crate::dashboard::times::span_text;
use crate::export::probe::{cost_words, driver_words, policy_lines, process_text, sentence};
use crate::tui::action::Action;
use crate::tui::app::App;
use crate::tui::clipboard::Copied;
use crate::tui::probe_question::{gpu_text, is_allowed};
use crate::tui::screen::{Effect, Screen, ScreenDef, is_small};
use crate::tui::theme::Role;
use crate::tui::widgets::area::{margin, split_top};
use crate::tui::widgets::cells::{put_line, put_lines, wrap_words};
use crate::tui::widgets::{heat, histogram};

pub const DEF: ScreenDef = ScreenDef {
    id: "probe",
    title: "Probe",
    glossary: &[
        (
            "DRIVER",
            "Allocations that succeed when the probe requests all memory except the headroom, largest power of two \
             first. If there is at most one allocation of each size, the GPU is not fragmented.",
        ),
        (
            "PATTERN",
            "Free blocks that a request pattern leaves in a fresh allocator, in an arena of at most 1 GiB.",
        ),
        (
            "PROCESS",
            "Free blocks in the cache of the process, if a process was selected when the probe was started.",
        ),
        (
            "native, expandable",
            "PyTorch's caching allocator with default settings, and with expandable_segments:True.",
        ),
        (
            "pool, plain",
            "The driver's stream-ordered pool (cudaMallocAsync), and cudaMalloc for every request.",
        ),
        (
            "ext.frag",
            "1 - largest free block / total free: 0 % means a single free block, and a value near 100 % means many small ones.",
        ),
    ],
    sample: |app| Some(Box::new(ProbeScreen::new(app.host.probes.any()?.clone()))),
};

#[derive(Debug)]
pub struct ProbeScreen {
    gpu: GpuUuid,
    /// Time when the probe was last repeated automatically.
    repeated_at: Option<Mono>,
}

impl ProbeScreen {
    pub fn new(gpu: GpuUuid) -> Self {
        Self { gpu, repeated_at: None }
    }

    fn newest<'a>(&self, app: &'a App) -> Option<&'a Arc<Probe>> {
        app.host.probes.of(&self.gpu).next()
    }

    /// Returns the title: `PROBE GPU 0 NVIDIA H200   12:04:31, 3s ago`.
    fn title(&self, app: &App) -> String {
        let name = gpu_text(&self.gpu, app);
        let when = match self.newest(app) {
            _ if app.host.probes.is_under_way(&self.gpu) => "running".into(),
            Some(probe) => {
                let clock = app.ui.theme.clock(probe.time, "%H:%M:%S");
                match probe.at.get() {
                    Some(at) => {
                        format!("{clock}, {} ago", span_text(app.host.frame.mono.since(at)))
                    }
                    None => clock,
                }
            }
            None => "not probed yet".into(),
        };
        format!("PROBE {name}   {when}")
    }
}

/// Returns the sentences above the histograms.
fn sentences(probe: &Probe) -> Vec<(String, Role)> {
    let mut lines = Vec::new();
    if let Some(why) = &probe.reason {
        let role = if probe.outcome == Outcome::NoContext { Role::Bad } else { Role::Warn };
        lines.push((sentence(why), role));
    }
    if let Some(fill) = &probe.driver {
        let role = if fill.is_clean() { Role::Good } else { Role::Warn };
        lines.push((format!("driver   {}", driver_words(fill)), role));
    }
    if let Some(run) = headline(probe) {
        let external = run
            .external_fragmentation
            .map_or(String::new(), |share| format!(", {:.0} % fragmented", share * 100.0));
        let words = format!(
            "pattern  {}: {} in free blocks, largest {}{external}",
            run.source, run.free_bytes, run.largest_free_block
        );
        lines.push((words, Role::Text));
    }
    if let Some(side) = &probe.process {
        lines.push((format!("process  {}", process_text(side)), Role::Text));
    }
    lines
}

/// Returns the first run that made requests. The screen shows the result of this run in the pattern column.
fn headline(probe: &Probe) -> Option<&PatternResult> {
    probe.patterns.iter().find(|run| run.requests_made > 0)
}

fn buckets(bins: &[Bin]) -> Vec<Bucket> {
    let bucket = |bin: &Bin| Bucket { up_to: bin.up_to_bytes, count: bin.count, bytes: bin.bytes };
    bins.iter().map(bucket).collect()
}

/// Returns the title and histogram of each column, and the text to show if the histogram has no free blocks.
fn columns(probe: &Probe) -> Vec<(String, &'static str, Vec<Bucket>)> {
    let mut columns = Vec::new();
    if let Some(fill) = &probe.driver {
        let list = buckets(&fill.histogram);
        columns.push(("DRIVER".into(), "no allocation succeeded", list));
    }
    if let Some(run) = headline(probe) {
        let list = buckets(&run.free_histogram);
        let title = format!("PATTERN {}", run.policy.name());
        columns.push((title, "no free blocks", list));
    }
    if let Some(side) = &probe.process
        && side.missing.is_none()
    {
        let list = buckets(&side.free_histogram);
        let title = format!("PID {}", side.process.pid);
        columns.push((title, "no free blocks", list));
    }
    columns
}

/// Minimum width of a histogram.
const MIN_HISTOGRAM: u16 = 24;
/// Blank columns between two histograms.
const GAP: u16 = 2;
const MAX_BARS: u16 = 20;

impl Screen for ProbeScreen {
    fn draw(&self, app: &App, area: Rect, buffer: &mut Buffer) {
        let theme = &app.ui.theme;
        let mut rest = margin(area);
        put_line(buffer, rest, &self.title(app), Role::Title, theme);
        rest = below(rest, 1);
        let Some(probe) = self.newest(app) else {
            return;
        };
        let lines: Vec<(String, Role)> = sentences(probe)
            .into_iter()
            .flat_map(|(text, role)| {
                let parts = wrap_words(&text, usize::from(rest.width.max(20)));
                parts.into_iter().map(move |part| (part, role))
            })
            .collect();
        put_lines(buffer, rest, &lines, theme);
        rest = below(rest, lines.len());
        if is_small(area) {
            return;
        }
        let policies: Vec<(String, Role)> = policy_lines(&probe.patterns)
            .into_iter()
            .enumerate()
            .map(|(at, line)| (line, if at == 0 { Role::Dim } else { Role::Text }))
            .collect();
        let cost: Vec<(String, Role)> = match &probe.driver {
            Some(_) => wrap_words(
                &format!("cost     {}", cost_words(probe)),
                usize::from(rest.width.max(20)),
            ),
            None => Vec::new(),
        }
        .into_iter()
        .map(|line| (line, Role::Dim))
        .collect();
        rest = below(rest, 1);
        let after = policies.len() + 1 + cost.len();
        let columns = columns(probe);
        let bars = columns.iter().map(|column| column.2.len()).max();
        let room = rest.height.saturating_sub(u16::try_from(after).unwrap_or(0));
        let wanted = u16::try_from(bars.unwrap_or(0)).unwrap_or(MAX_BARS);
        let height = (wanted.min(MAX_BARS) + 1).min(room);
        let [histograms, _] = split_top(rest, height);
        draw_columns(&columns, histograms, buffer, app);
        rest = below(rest, usize::from(height) + 1);
        put_lines(buffer, rest, &policies, theme);
        rest = below(rest, policies.len());
        put_lines(buffer, rest, &cost, theme);
        rest = below(rest, cost.len() + 1);
        self.draw_history(app, rest, buffer);
    }

    fn act(&mut self, _action: Action, _app: &App, _body: Rect) -> Effect {
        Effect::Ignored
    }

    /// Repeats the probe at the interval set by the user while this screen is open.
    fn next_request(&mut self, app: &App) -> Option<Request> {
        let interval = app.ui.probe_interval?;
        is_allowed(app).ok()?;
        let last = self.newest(app)?.at.get()?.max(self.repeated_at.unwrap_or_default());
        let now = app.host.frame.mono;
        if app.host.probes.is_under_way(&self.gpu) || now.since(last) < interval {
            return None;
        }
        self.repeated_at = Some(now);
        app.host.probes.last_request(&self.gpu).cloned().map(Request::Probe)
    }

    fn gpu(&self, _app: &App) -> Option<GpuUuid> {
        Some(self.gpu.clone())
    }

    fn copied(&self, app: &App) -> Option<Copied> {
        let probe = self.newest(app)?;
        let text = crate::export::probe::text(probe, &gpu_text(&self.gpu, app));
        Some(Copied::new("the probe", &text))
    }

    fn footer(&self) -> &'static [Action] {
        &[Action::Back, Action::Probe, Action::Copy]
    }

    fn def(&self) -> &'static ScreenDef {
        &DEF
    }
}

impl ProbeScreen {
    /// Draws how the free blocks left by the request pattern changed from one probe of this GPU to the next.
    fn draw_history(&self, app: &App, area: Rect, buffer: &mut Buffer) {
        let probes =
            || app.host.probes.of(&self.gpu).filter(|probe| probe.outcome == Outcome::Done);
        if probes().count() < 2 {
            return;
        }
        let history: Vec<Vec<Bucket>> = probes()
            .map(|probe| headline(probe).map_or_else(Vec::new, |run| buckets(&run.free_histogram)))
            .collect();
        let title = format!("HISTORY of {} probes: free blocks of the pattern", history.len());
        let [map, _] = split_top(area, MAX_BARS + 1);
        heat::draw(&title, &history, map, buffer, &app.ui.theme);
    }
}

fn draw_columns(
    columns: &[(String, &'static str, Vec<Bucket>)],
    area: Rect,
    buffer: &mut Buffer,
    app: &App,
) {
    let fits = ((area.width + GAP) / (MIN_HISTOGRAM + GAP)).max(1);
    let shown = &columns[..columns.len().min(usize::from(fits))];
    let count = u16::try_from(shown.len()).unwrap_or(1).max(1);
    let width = ((area.width + GAP) / count).saturating_sub(GAP).min(48);
    for (at, (title, empty, list)) in (0_u16..).zip(shown) {
        let place = Rect { x: area.x + at * (width + GAP), width, ..area };
        // The policy name is shown below the histograms, so the title can omit it.
        let title = match title.split_once(' ') {
            Some(("PATTERN", _)) if width < 30 => "PATTERN",
            _ => title,
        };
        histogram::draw_titled(title, empty, list, place, buffer, &app.ui.theme);
    }
}

/// Returns the area without its first `rows` rows.
fn below(area: Rect, rows: usize) -> Rect {
    let [_, below] = split_top(area, u16::try_from(rows).unwrap_or(u16::MAX));
    below
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tui::keymap::Keymap;
    use crate::tui::picture::text_of;
    use crate::tui::theme::{Palette, Theme};
    use gputop_model::frame::Frame;
    use gputop_model::gpu::Gpu;
    use gputop_model::probe::{Cost, Fill, Latency, Policy, ProcessFragmentation};
    use gputop_model::process::ProcessKey;
    use gputop_model::protocol::Update;
    use gputop_model::units::{Bytes, Millis, Pid, StartTicks, UnixMillis};

    fn bin(power: u32, count: u64, mib: u64) -> Bin {
        Bin { up_to_bytes: Bytes(1 << power), count, bytes: Bytes::mib(mib) }
    }

    fn run(policy: Policy, free: u64) -> PatternResult {
        PatternResult {
            policy,
            source: "PID 418".into(),
            arena_bytes: Bytes::gib(1),
            requests: 400,
            requests_made: 400,
            reserved_bytes: Bytes::mib(600 + free),
            allocated_bytes: Bytes::mib(600),
            free_bytes: Bytes::mib(free),
            largest_free_block: Bytes::mib(free / 2),
            external_fragmentation: Some(0.5),
            free_histogram: vec![bin(20, 30, free / 8), bin(22, 9, free / 4), bin(26, 3, free / 2)],
            us: 12_400,
            ..PatternResult::default()
        }
    }

    fn probe(at: u64, free: u64) -> Probe {
        Probe {
            gpu: GpuUuid("GPU-1".into()),
            time: UnixMillis(1_700_000_000_000),
            at: Mono(at).into(),
            outcome: Outcome::Done,
            total_bytes: Bytes::mib(143_771).into(),
            headroom_bytes: Bytes::gib(3),
            driver: Some(Fill {
                held_bytes: Bytes::gib(136),
                wanted_bytes: Bytes::gib(136),
                largest_bytes: Bytes::gib(128),
                granule_bytes: Bytes::mib(2),
                histogram: vec![bin(33, 1, 8_192), bin(37, 1, 131_072)],
                latency: vec![Latency::default()],
                cut_short: false,
            }),
            patterns: vec![
                run(Policy::Native, free),
                run(Policy::Expandable, free / 2),
                PatternResult {
                    policy: Policy::Pool,
                    missing: Some("the driver is too old".into()),
                    ..PatternResult::default()
                },
            ],
            process: Some(ProcessFragmentation {
                process: ProcessKey { pid: Pid(418), start: StartTicks(1) },
                exact: true,
                free_bytes: Bytes::mib(900),
                largest_free_block: Bytes::mib(100),
                free_histogram: vec![bin(21, 40, 60), bin(27, 12, 840)],
                ..ProcessFragmentation::default()
            }),
            cost: Cost {
                held_peak_bytes: Bytes::gib(136),
                held_byte_ms: Bytes::gib(136).0 * 40,
                held_ms: 312,
                context_bytes: Bytes::mib(518).into(),
                start_ms: 180,
                total_ms: 900,
            },
            ..Probe::default()
        }
    }

    fn app(probes: impl IntoIterator<Item = Probe>) -> App {
        let keymap = Keymap::default();
        let theme = Theme::new(Palette::None, true, jiff::tz::TimeZone::UTC);
        let mut app = App::new(theme, keymap, None);
        let gpu =
            Gpu { uuid: GpuUuid("GPU-1".into()), name: "NVIDIA H200".into(), ..Gpu::default() };
        app.update(Update::Frame(Arc::new(Frame {
            mono: Mono(200_000),
            gpus: vec![gpu],
            ..Frame::default()
        })));
        for probe in probes {
            app.update(Update::Probed(Arc::new(probe)));
        }
        app
    }

    fn drawn(app: &App, width: u16, height: u16) -> String {
        let screen = ProbeScreen::new(GpuUuid("GPU-1".into()));
        let area = Rect::new(0, 0, width, height);
        let mut buffer = Buffer::empty(area);
        screen.draw(app, area, &mut buffer);
        text_of(&buffer)
    }

    #[test]
    fn draws_three_histograms_side_by_side() {
        let app = app([probe(100_000, 100), probe(150_000, 200), probe(197_000, 400)]);
        insta::assert_snapshot!("probe-120x40", drawn(&app, 120, 38));
        insta::assert_snapshot!("probe-80x24", drawn(&app, 80, 22));
        insta::assert_snapshot!("probe-40x6", drawn(&app, 40, 5));
    }

    #[test]
    fn shows_the_reason_without_a_context() {
        let refused = Probe {
            gpu: GpuUuid("GPU-1".into()),
            outcome: Outcome::NoContext,
            reason: Some("71.30 GiB is free, but too fragmented for a CUDA context (CUDA error 2): no process can start on this GPU".into()),
            ..Probe::default()
        };
        insta::assert_snapshot!("probe-no-context", drawn(&app([refused]), 80, 6));
    }

    #[test]
    fn draws_at_any_size() {
        let app = app([probe(100_000, 100), probe(197_000, 400)]);
        for width in (0..=130).step_by(7) {
            for height in 0..=45 {
                let _ = drawn(&app, width, height);
            }
        }
    }

    #[test]
    fn repeats_the_probe_only_after_the_interval() {
        let mut app = app([probe(197_000, 400)]);
        let gpu = GpuUuid("GPU-1".into());
        let mut screen = ProbeScreen::new(gpu.clone());
        app.host
            .probes
            .ask(gputop_model::probe::ProbeRequest { gpu: gpu.clone(), ..Default::default() });
        app.update(Update::Probed(Arc::new(probe(197_000, 1))));
        assert!(screen.next_request(&app).is_none(), "without the setting");
        app.ui.probe_interval = Some(Millis(10_000));
        assert!(screen.next_request(&app).is_none(), "3 s after the reply");
        app.ui.probe_interval = Some(Millis(3_000));
        assert!(matches!(screen.next_request(&app), Some(Request::Probe(wish)) if wish.gpu == gpu));
        assert!(screen.next_request(&app).is_none(), "until a reply arrives");
    }
}
