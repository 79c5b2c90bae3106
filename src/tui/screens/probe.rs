//! What a probe of a card found: the driver, the pattern and the process side by side, the policies below each other,
//! and the probes before it as a heat map.

use std::sync::Arc;

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;

use super::{Screen, ScreenDef, Step, is_small};
use crate::allocator::fragmentation::Bucket;
use crate::export::probe::{cost_words, driver_words, policy_lines, process_words, sentence};
use crate::model::probe::{Bin, Outcome, PatternRun, Probe};
use crate::model::units::{GpuUuid, Mono};
use crate::source::Request;
use crate::tui::action::Action;
use crate::tui::app::App;
use crate::tui::clipboard::Copied;
use crate::tui::probe_menu::{gpu_words, is_allowed};
use crate::tui::theme::Role;
use crate::tui::widgets::cells::{put_line, put_lines, wrap_words};
use crate::tui::widgets::timeline::span_words;
use crate::tui::widgets::{heat, histogram};

pub const DEF: ScreenDef = ScreenDef {
    id: "probe",
    title: "Probe",
    words: &[
        (
            "DRIVER",
            "What the driver hands out when everything but the headroom is asked for, the largest power of two first. \
             At most one piece of each size is a card that is not fragmented.",
        ),
        (
            "PATTERN",
            "The free blocks that a pattern of requests leaves of a fresh allocator, in an arena of at most 1 GiB.",
        ),
        (
            "PROCESS",
            "The free blocks of the process's own cache, when it was probed from one.",
        ),
        (
            "native, expandable",
            "PyTorch's caching allocator with its defaults, and with expandable_segments:True.",
        ),
        (
            "pool, plain",
            "The driver's stream-ordered pool (cudaMallocAsync), and every request the driver's (cudaMalloc).",
        ),
        (
            "ext.frag",
            "1 - largest free block / all that is free: 0 % is one hole, near 100 % is dust.",
        ),
    ],
    sample: |app| Some(Box::new(ProbeScreen::new(app.probes.any()?.clone()))),
};

#[derive(Debug)]
pub struct ProbeScreen {
    gpu: GpuUuid,
    /// When it was asked for again by itself.
    asked: Option<Mono>,
}

impl ProbeScreen {
    pub fn new(gpu: GpuUuid) -> Self {
        Self { gpu, asked: None }
    }

    fn newest<'a>(&self, app: &'a App) -> Option<&'a Arc<Probe>> {
        app.probes.of(&self.gpu).next()
    }

    /// `PROBE GPU 0 NVIDIA H200   12:04:31, 3s ago`
    fn title(&self, app: &App) -> String {
        let name = gpu_words(&self.gpu, app);
        let when = match self.newest(app) {
            _ if app.probes.is_under_way(&self.gpu) => "under way".into(),
            Some(probe) => {
                let clock = app.theme.clock(probe.time, "%H:%M:%S");
                match probe.at.get() {
                    Some(at) => format!("{clock}, {} ago", span_words(app.frame.mono.since(at))),
                    None => clock,
                }
            }
            None => "not probed yet".into(),
        };
        format!("PROBE {name}   {when}")
    }
}

/// The sentences above the histograms.
fn sentences(probe: &Probe) -> Vec<(String, Role)> {
    let mut lines = Vec::new();
    if let Some(why) = &probe.reason {
        let role = if probe.outcome == Outcome::NoContext {
            Role::Bad
        } else {
            Role::Warn
        };
        lines.push((sentence(why), role));
    }
    if let Some(fill) = &probe.driver {
        let role = if fill.is_clean() {
            Role::Good
        } else {
            Role::Warn
        };
        lines.push((format!("driver   {}", driver_words(fill)), role));
    }
    if let Some(run) = headline(probe) {
        let external = run.external_fragmentation.map_or(String::new(), |share| {
            format!(", {:.0} % fragmented", share * 100.0)
        });
        let words = format!(
            "pattern  {}: {} in free blocks, the largest {}{external}",
            run.source, run.free_bytes, run.largest_free_block
        );
        lines.push((words, Role::Text));
    }
    if let Some(side) = &probe.process {
        lines.push((format!("process  {}", process_words(side)), Role::Text));
    }
    lines
}

/// The run whose histogram stands for the pattern: the first that was run at all.
fn headline(probe: &Probe) -> Option<&PatternRun> {
    let has_run = |run: &&PatternRun| run.requests_made > 0;
    probe.patterns.iter().find(has_run)
}

fn buckets(bins: &[Bin]) -> Vec<Bucket> {
    let bucket = |bin: &Bin| Bucket {
        up_to: bin.up_to_bytes,
        count: bin.count,
        bytes: bin.bytes,
    };
    bins.iter().map(bucket).collect()
}

/// Title, what stands where it is empty, the histogram.
fn columns(probe: &Probe) -> Vec<(String, &'static str, Vec<Bucket>)> {
    let mut columns = Vec::new();
    if let Some(fill) = &probe.driver {
        let list = buckets(&fill.histogram);
        columns.push(("DRIVER".into(), "it gave nothing", list));
    }
    if let Some(run) = headline(probe) {
        let list = buckets(&run.free_histogram);
        let title = format!("PATTERN {}", run.policy.name());
        columns.push((title, "nothing is left free", list));
    }
    if let Some(side) = &probe.process
        && side.missing.is_none()
    {
        let list = buckets(&side.free_histogram);
        let title = format!("PID {}", side.process.pid);
        columns.push((title, "nothing is free", list));
    }
    columns
}

/// The least width of a histogram.
const HISTOGRAM: u16 = 25;
/// Blank columns between two.
const GAP: u16 = 2;
const MOST_BARS: u16 = 14;

impl Screen for ProbeScreen {
    fn draw(&self, app: &App, area: Rect, buffer: &mut Buffer) {
        let theme = &app.theme;
        let mut rest = Rect {
            x: area.x + 1,
            width: area.width.saturating_sub(2),
            ..area
        };
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
        let cost = (probe.driver.is_some()).then(|| format!("cost     {}", cost_words(probe)));
        rest = below(rest, 1);
        let after = policies.len() + 1 + cost.iter().len();
        let columns = columns(probe);
        let bars = columns.iter().map(|column| column.2.len()).max();
        let room = rest
            .height
            .saturating_sub(u16::try_from(after).unwrap_or(0));
        let wanted = u16::try_from(bars.unwrap_or(0)).unwrap_or(MOST_BARS);
        let height = (wanted.min(MOST_BARS) + 1).min(room);
        draw_columns(&columns, Rect { height, ..rest }, buffer, app);
        rest = below(rest, usize::from(height) + 1);
        put_lines(buffer, rest, &policies, theme);
        rest = below(rest, policies.len());
        if let Some(cost) = cost {
            put_line(buffer, rest, &cost, Role::Dim, theme);
            rest = below(rest, 2);
        }
        self.draw_history(app, rest, buffer);
    }

    fn act(&mut self, _action: Action, _app: &App) -> Step {
        Step::Ignored
    }

    /// Again after the interval that the user set, as long as this is open.
    fn wants(&mut self, app: &App) -> Option<Request> {
        let every = app.probe_interval?;
        is_allowed(app).ok()?;
        let last = self
            .newest(app)?
            .at
            .get()?
            .max(self.asked.unwrap_or_default());
        let now = app.frame.mono;
        if app.probes.is_under_way(&self.gpu) || now.since(last) < every {
            return None;
        }
        self.asked = Some(now);
        app.probes.wish(&self.gpu).cloned().map(Request::Probe)
    }

    fn gpu(&self, _app: &App) -> Option<GpuUuid> {
        Some(self.gpu.clone())
    }

    fn copied(&self, app: &App) -> Option<Copied> {
        let probe = self.newest(app)?;
        let text = crate::export::probe::text(probe, &gpu_words(&self.gpu, app));
        Some(Copied::new("the probe", &text))
    }

    fn footer(&self) -> &'static [Action] {
        &[Action::Back, Action::Probe, Action::Copy, Action::Help]
    }

    fn def(&self) -> &'static ScreenDef {
        &DEF
    }
}

impl ProbeScreen {
    /// The pattern's free blocks over the probes of this card.
    fn draw_history(&self, app: &App, area: Rect, buffer: &mut Buffer) {
        let probes = || {
            app.probes
                .of(&self.gpu)
                .filter(|probe| probe.outcome == Outcome::Done)
        };
        if probes().count() < 2 {
            return;
        }
        let history: Vec<Vec<Bucket>> = probes()
            .map(|probe| headline(probe).map_or_else(Vec::new, |run| buckets(&run.free_histogram)))
            .collect();
        let title = format!(
            "HISTORY of {} probes: the pattern's free blocks",
            history.len()
        );
        let height = area.height.min(MOST_BARS + 1);
        heat::draw(
            &title,
            &history,
            Rect { height, ..area },
            buffer,
            &app.theme,
        );
    }
}

fn draw_columns(
    columns: &[(String, &'static str, Vec<Bucket>)],
    area: Rect,
    buffer: &mut Buffer,
    app: &App,
) {
    let fits = ((area.width + GAP) / (HISTOGRAM + GAP)).max(1);
    let shown = &columns[..columns.len().min(usize::from(fits))];
    let count = u16::try_from(shown.len()).unwrap_or(1).max(1);
    let width = ((area.width + GAP) / count).saturating_sub(GAP).min(48);
    for (at, (title, empty, list)) in (0_u16..).zip(shown) {
        let place = Rect {
            x: area.x + at * (width + GAP),
            width,
            ..area
        };
        histogram::draw_titled(title, empty, list, place, buffer, &app.theme);
    }
}

/// What is left below so many rows.
fn below(area: Rect, rows: usize) -> Rect {
    let rows = u16::try_from(rows).unwrap_or(u16::MAX).min(area.height);
    Rect {
        y: area.y + rows,
        height: area.height - rows,
        ..area
    }
}
