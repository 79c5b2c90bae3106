//! The text of the memory screen: the lines of the accounting, counters, notes, metrics and stack, and the same data as
//! text to send to a colleague.

use std::fmt::Write as _;

use gputop_allocator::fragmentation::{Fragmentation, StreamPool};
use gputop_allocator::warnings::Note;
use gputop_allocator::warnings::NoteKind::{OomCaught, RetriesIncreasing};
use gputop_model::gpu::Gpu;
use gputop_model::history::SeriesKey;
use gputop_model::pool::Pool;
use gputop_model::process::ProcessKey;
use gputop_model::reported_pool::ReportedPool;
use gputop_model::stack::StackTrigger;
use gputop_model::units::{Bytes, Millis, Mono, UnixMillis};

use super::analysed_map::AnalysedMap;
use super::figures::{Card, Figures, STEP, down, down_with_unit, gib};
use super::state::Shown;
use crate::dashboard::memory_parts::MemoryPart;
use crate::dashboard::pools;
use crate::dashboard::rows::ProcessRow;
use crate::dashboard::times::span_text;
use crate::export::text_width::fit;
use crate::tui::app::App;
use crate::tui::clipboard::Copied;
use crate::tui::stacks;
use crate::tui::theme::{Role, Theme};
use crate::tui::widgets::cells::{join_fitting, wrap_words};
use crate::tui::widgets::segment_map::{pool_text, stream_text};

/// A line of the memory accounting.
pub(super) struct AccountingRow {
    pub(super) shape: Option<(&'static str, Role)>,
    pub(super) name: &'static str,
    pub(super) description: String,
    pub(super) size: String,
    pub(super) peak: String,
    pub(super) compare: String,
}

/// Creates an accounting line without a peak or comparison size.
fn line(
    shape: Option<(&'static str, Role)>,
    name: &'static str,
    description: &str,
    size: String,
) -> AccountingRow {
    AccountingRow {
        shape,
        name,
        description: description.into(),
        size,
        peak: String::new(),
        compare: String::new(),
    }
}

pub(super) fn stack_lines(
    app: &App,
    process: ProcessKey,
    width: u16,
    max_lines: usize,
) -> Vec<(String, Role)> {
    let Some(stack) = app.host.stacks(process).next() else {
        return Vec::new();
    };
    let stack = match stack {
        Ok(stack) => stack,
        Err(why) => return vec![(format!("Python stack  {why}"), Role::Dim)],
    };
    let why = stacks::why_text(stack, app.host.frame.mono);
    let mut lines = vec![(format!("Python stack  {why}"), Role::Dim)];
    let mut frames = wrap_words(&stacks::frames_text(stack), usize::from(width.max(10)));
    if frames.len() > max_lines {
        let rest = frames.split_off(max_lines - 1).join(" ");
        frames.push(fit(&rest, usize::from(width), app.ui.theme.glyphs.ellipsis).into_owned());
    }
    lines.extend(frames.into_iter().map(|line| (line, Role::Text)));
    lines
}
/// A metric with its standard name and description.
pub struct Metric {
    pub name: String,
    /// Empty if this line is a heading.
    pub value: String,
    pub description: String,
}

/// Heading of the metrics. They come from the map, so they may not add up with the statistics.
fn metrics_title(figures: &Figures, of: &Fragmentation) -> &'static str {
    if figures.differ(of) { "METRICS (from the map, read at another time)" } else { "METRICS" }
}

/// Returns all metrics, with headings.
fn metric_lines(pool: &Pool, read: &AnalysedMap, figures: &Figures, theme: &Theme) -> Vec<Metric> {
    let of = &read.fragmentation;
    let metric = |name: &str, value: String, description: &str| Metric {
        name: name.into(),
        value,
        description: description.into(),
    };
    let absent = || theme.glyphs.absent.to_owned();
    let is_bfc = pool.allocator.is_bfc();
    let (all, largest) = match is_bfc {
        true => ("all free chunks of the pool", "the largest request without a new region"),
        false => ("all free blocks of the cache", "in any stream and pool"),
    };
    let mut lines = vec![
        metric(metrics_title(figures, of), String::new(), ""),
        metric(
            "external fragmentation",
            of.external().map_or_else(absent, percent),
            &figures.fragmentation_verdict(),
        ),
        metric("free blocks", small_gib(of.free), all),
        metric("largest free block", down_with_unit(of.largest), largest),
        metric(
            "largest allocated block",
            read.largest_allocated.map_or_else(absent, small_gib),
            "Enter on the map goes to it",
        ),
    ];
    let rounding = if of.rounding_known { small_gib(of.rounding) } else { absent() };
    if is_bfc {
        let regions = read.map.segments.len().to_string();
        lines.extend([
            metric("rounding waste", rounding, "allocated - requested, 256-byte steps and more"),
            metric("regions", regions, "contiguous regions from the driver"),
        ]);
    } else {
        let split = match of.expandable {
            true => "not counted for expandable segments",
            false => "free, beside a live block",
        };
        let segments = pool.stats.segments.to_string();
        lines.extend([
            metric("inactive split bytes", small_gib(of.inactive_split), split),
            metric("rounding waste", rounding, "allocated - requested, 512-byte steps"),
            metric("segments", segments, "contiguous regions from the driver"),
        ]);
    }
    lines.extend(stream_pool_lines(read));
    lines.push(metric("UNUSABLE FREE SPACE", String::new(), ""));
    lines.extend(curve_lines(read, theme));
    lines
}

/// Returns the free memory of each combination of stream and pool, if there is more than one.
fn stream_pool_lines(read: &AnalysedMap) -> Vec<Metric> {
    let stream_pools = &read.fragmentation.by_stream;
    if stream_pools.len() < 2 {
        return Vec::new();
    }
    let heading = Metric {
        name: "FREE BY STREAM AND POOL (a stream cannot use that of others)".into(),
        value: String::new(),
        description: String::new(),
    };
    let line = |part: &StreamPool| Metric {
        name: format!("stream {} {}", stream_text(part.stream), pool_text(part.pool)),
        value: small_gib(part.free),
        description: format!("{} blocks, largest {}", part.count, small_gib(part.largest)),
    };
    std::iter::once(heading).chain(stream_pools.iter().map(line)).collect()
}

/// Returns the lines of the fragmentation curve, starting at the largest size for which all free memory is usable.
fn curve_lines(read: &AnalysedMap, theme: &Theme) -> Vec<Metric> {
    let usable_sizes = read.curve.partition_point(|(_, unusable)| *unusable < 0.005);
    read.curve
        .iter()
        .skip(usable_sizes.saturating_sub(1))
        .map(|(size, unusable)| {
            #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
            let cells = (unusable * 24.0).round() as usize;
            Metric {
                name: format!("for a request of {}", size.short()),
                value: percent(*unusable),
                description: theme.glyphs.allocated.repeat(cells),
            }
        })
        .collect()
}

fn percent(share: f64) -> String {
    format!("{:.0} %", share * 100.0)
}

/// Formats a size in GiB, such as `3.20 GiB`, or a small size in its own unit.
fn small_gib(size: Bytes) -> String {
    if size.0 >= STEP * 10 || size.0 == 0 { format!("{} GiB", gib(size)) } else { size.to_string() }
}

impl Shown<'_> {
    pub(super) fn lines(&self) -> Vec<AccountingRow> {
        let mut lines = Vec::from(self.pool_lines());
        lines.extend(self.cached_lines());
        lines.push(self.other_line());
        lines.push(self.process_line());
        lines.extend(self.card_lines());
        lines.extend(self.pinned_line());
        lines
    }

    /// Returns the line for pinned memory of the host, which JAX and TensorFlow also manage in pools.
    fn pinned_line(&self) -> Option<AccountingRow> {
        let size = pools::pinned_host(&self.app.host.frame, self.screen.process)?;
        Some(line(None, "pinned", "memory of the host, for copies", gib(size)))
    }

    fn shape(&self, part: MemoryPart) -> Option<(&'static str, Role)> {
        Some((self.theme.memory_glyph(part), part.into()))
    }

    fn pool_lines(&self) -> [AccountingRow; 2] {
        let figures = &self.figures;
        let peak = self.pool.stats.allocated_peak;
        let is_bfc = self.pool.allocator.is_bfc();
        let (words, compare) = match is_bfc {
            true => ("live arrays", "bytes_in_use"),
            false => ("live tensors", "memory_allocated()"),
        };
        let shape = self.shape(MemoryPart::Allocated);
        let size = gib(figures.allocated);
        let allocated = AccountingRow {
            peak: if peak.0 > 0 { gib(peak) } else { String::new() },
            compare: compare.into(),
            ..line(shape, "allocated", words, size)
        };
        let shape = self.shape(MemoryPart::Cached);
        let size = gib(figures.cached);
        let reserved = gib(Bytes(figures.allocated.0 + figures.cached.0));
        let limit =
            self.pool.limit.map(|limit| format!("reserved - allocated; limit {}", gib(limit)));
        let cached = AccountingRow {
            compare: format!("{} {reserved}", if is_bfc { "pool_bytes" } else { "reserved" }),
            ..line(shape, "cached", limit.as_deref().unwrap_or("reserved - allocated"), size)
        };
        [allocated, cached]
    }

    /// Returns the parts of cached memory. Rare parts are omitted while they are 0.
    fn cached_lines(&self) -> Vec<AccountingRow> {
        if self.pool.allocator.is_bfc() {
            // The allocator returns nothing to the driver, and one request can use any part.
            return Vec::new();
        }
        let Some(parts) = self.figures.cached_parts else {
            let words = "unknown without the map";
            return vec![line(None, "  fragmented", words, self.theme.glyphs.absent.to_owned())];
        };
        let about = approximate(self.figures.is_split_approximate);
        let part = |name, words, size| line(None, name, words, format!("{about}{}", gib(size)));
        let mut lines = vec![
            part("  fragmented", "beside live tensors", parts.fragmented),
            part("  returnable", self.returnable_text(), parts.returnable),
        ];
        if parts.private.0 > 0 {
            lines.push(part("  private", "CUDA graphs and MemPools", parts.private));
        }
        if parts.waiting.0 > 0 {
            lines.push(part("  waiting", "for another stream", parts.waiting));
        }
        lines
    }

    fn other_line(&self) -> AccountingRow {
        let (figures, glyphs) = (&self.figures, &self.theme.glyphs);
        let about = approximate(figures.is_other_approximate);
        let size =
            figures.other.map_or_else(|| glyphs.absent.into(), |o| format!("{about}{}", gib(o)));
        let mut words = "context, libraries".to_owned();
        for pool in &self.beside {
            let framework = pool.library.split([',', ' ']).next().unwrap_or_default();
            let _ = write!(words, ", {framework} {}", gib(pool.stats.reserved.last()));
        }
        line(self.shape(MemoryPart::Other), "other", &words, size)
    }

    /// Returns the lines for memory outside the process.
    fn card_lines(&self) -> Vec<AccountingRow> {
        let Some(card) = self.figures.card else {
            return Vec::new();
        };
        let mut lines = Vec::new();
        if card.elsewhere.0 > 0 {
            let shape = self.shape(MemoryPart::Unreadable);
            let words = "other processes";
            let about = approximate(self.figures.is_other_approximate);
            let size = format!("{about}{}", gib(card.elsewhere));
            lines.push(line(shape, "elsewhere", words, size));
        }
        let shape = self.shape(MemoryPart::Free);
        let words = self.free_text(card);
        lines.push(line(shape, "free", &words, gib(card.free)));
        lines
    }

    fn free_text(&self, card: Card) -> String {
        let (total, driver) = (gib(card.total), gib(card.driver));
        if self.wide {
            let elsewhere = if card.elsewhere.0 > 0 { " - elsewhere" } else { "" };
            format!("card {total} - driver {driver} - process{elsewhere}")
        } else {
            format!("of {total} (driver {driver})")
        }
    }

    fn returnable_text(&self) -> &'static str {
        match &self.screen.analysed_map {
            Some(map) if map.fragmentation.expandable => "free segments and pages",
            _ => "whole free segments",
        }
    }

    fn process_line(&self) -> AccountingRow {
        let vram = pools::vram(&self.app.host.frame, &self.pool);
        let peak = self.gpu.and_then(|gpu| {
            let key = SeriesKey::Vram(self.screen.process, gpu.uuid.clone());
            self.app.host.history.series(&key)?.peak_until(self.app.host.frame.mono)
        });
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
        let peak = peak.map_or(String::new(), |peak| gib(Bytes(peak as u64)));
        let row = self.screen.row(self.app).filter(|row| row.is_growing());
        let growth = row.and_then(ProcessRow::growth_text);
        let description = growth.map(|growth| format!("{growth} GiB per minute"));
        AccountingRow {
            shape: None,
            name: "process",
            description: description.unwrap_or_default(),
            size: gib(self.figures.process),
            peak,
            compare: match vram {
                Some(vram) => format!("nvidia-smi {}M", vram.0 >> 20),
                None => "not listed by the driver".into(),
            },
        }
    }

    pub(super) fn copied(&self) -> Copied {
        let pid = self.screen.process.pid;
        let name = self.screen.row(self.app).map_or("process".into(), ProcessRow::program);
        let device = match self.gpu {
            Some(gpu) => format!("GPU {} {}", gpu.index, gpu.name),
            None => format!("cuda:{}", self.pool.ordinal),
        };
        let clock = self.theme.clock(self.app.host.frame.time, "%Y-%m-%d %H:%M:%S");
        let mut text = format!("{name} {pid}  {device}  {}  {clock}\n", self.pool.library);
        let _ = writeln!(text, "{}", self.headline_text());
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
        let _ = if self.pool.allocator.is_bfc() {
            writeln!(text, "FITS pool {cache}   new region {driver}")
        } else {
            writeln!(
                text,
                "FITS cache {cache}   driver {driver}   after flush {flushed}   {counters}"
            )
        };
        let _ = writeln!(text, "gputop allocator {pid}");
        Copied::new(format!("the memory of PID {pid}"), &text)
    }

    /// Returns the wall-clock time of a past event.
    pub(super) fn clock(&self, at: Mono) -> String {
        let frame = &self.app.host.frame;
        let back = i64::try_from(frame.mono.since(at).0).unwrap_or(0);
        let time = UnixMillis(frame.time.0.saturating_sub(back));
        self.theme.clock(time, "%H:%M")
    }

    /// Summarizes the unused memory in one sentence. For memory that was preallocated and is not used, names the setting
    /// that reserves less.
    pub(super) fn headline_text(&self) -> String {
        let pools = self.app.host.frame.pools.iter();
        let mut reported = pools.flat_map(|pools| pools.reported_of(self.screen.process));
        let is_shown = |pool: &&ReportedPool| {
            pool.ordinal == self.pool.ordinal && pool.allocator == self.pool.allocator
        };
        let row = self.screen.row(self.app);
        let conf = row.and_then(|row| row.facts()?.pool_conf.as_deref());
        let preallocated = reported.find(is_shown).and_then(|pool| pool.preallocation(conf));
        preallocated.unwrap_or_else(|| self.figures.headline())
    }

    /// Returns the most urgent note as a line.
    pub(super) fn first_note(&self) -> Option<String> {
        let note = self.notes.first()?;
        let since = self.clock(note.since);
        Some(format!("note  since {since}: {}", note.text))
    }

    /// Returns the metrics and the notes.
    pub(super) fn metric_lines(&self) -> Vec<Metric> {
        let Some(read) = &self.screen.analysed_map else {
            return Vec::new();
        };
        let mut lines = metric_lines(&self.pool, read, &self.figures, self.theme);
        lines.extend(self.note_lines());
        lines
    }

    /// Returns all notes if there is more than one.
    fn note_lines(&self) -> Vec<Metric> {
        if self.notes.len() < 2 {
            return Vec::new();
        }
        let heading =
            Metric { name: "NOTES".into(), value: String::new(), description: String::new() };
        let line = |note: &Note| Metric {
            name: format!("since {}", self.clock(note.since)),
            value: " ".into(),
            description: note.text.clone(),
        };
        std::iter::once(heading).chain(self.notes.iter().map(line)).collect()
    }

    /// Returns the newest Python stack: the reason for reading it, and at most `max_lines` lines of frames.
    pub(super) fn stack_lines(&self, width: u16, max_lines: usize) -> Vec<(String, Role)> {
        stack_lines(self.app, self.screen.process, width, max_lines)
    }

    pub(super) fn is_stack_requested(&self) -> bool {
        self.app.host.stacks(self.screen.process).next().is_some_and(|stack| {
            stack.as_ref().map_or(true, |stack| stack.why == StackTrigger::Request)
        })
    }

    /// Formats the counters: `RETRY 2 (11:58)  OOM 1 (caught)`.
    pub(super) fn counters(&self) -> String {
        if self.pool.allocator.is_bfc() {
            return String::new();
        }
        let stats = &self.pool.stats;
        let since = |kind| {
            let note = self.notes.iter().find(|note| note.kind == kind);
            note.map_or(String::new(), |note| format!(" ({})", self.clock(note.since)))
        };
        let caught = if stats.num_ooms > 0 { " (caught)" } else { "" };
        let oom = match since(OomCaught) {
            time if time.is_empty() => caught.to_owned(),
            time => time,
        };
        format!(
            "RETRY {}{}  OOM {}{oom}",
            stats.num_alloc_retries,
            since(RetriesIncreasing),
            stats.num_ooms
        )
    }

    pub(super) fn counters_role(&self) -> Role {
        let stats = &self.pool.stats;
        if stats.num_ooms > 0 {
            Role::Bad
        } else if stats.num_alloc_retries > 0 {
            Role::Warn
        } else {
            Role::Dim
        }
    }

    pub(super) fn small_lines(&self, width: u16) -> Vec<(String, Role)> {
        let figures = &self.figures;
        let tenths = |size: Bytes| format!("{:.1}", size.as_gib());
        let size = |size: Option<Bytes>| size.map_or(self.theme.glyphs.absent.into(), tenths);
        // Round down, so that a request of the displayed size fits.
        let step = STEP * 10;
        let fits = figures.fits.largest().map(|f| Bytes(f.0 / step * step));
        let parts = [
            format!("FITS {}", size(fits)),
            format!("alloc {}", tenths(figures.allocated)),
            format!("cached {}", tenths(figures.cached)),
            format!("frag {}", size(figures.cached_parts.map(|p| p.fragmented))),
        ];
        let is_bfc = self.pool.allocator.is_bfc();
        let parts = &parts[..parts.len() - usize::from(is_bfc)];
        let mut lines = vec![(join_fitting(parts, width), Role::Text)];
        lines.extend((!is_bfc).then(|| (self.counters(), self.counters_role())));
        lines.extend(self.notes.iter().map(|note| (note.text.clone(), Role::Warn)));
        lines.extend(stack_lines(self.app, self.screen.process, width, 1));
        let headline = self.headline_text();
        lines.extend(
            wrap_words(&headline, usize::from(width.max(10)))
                .into_iter()
                .map(|line| (line, Role::Dim)),
        );
        lines
    }

    /// Returns the age of the newest data on the screen.
    pub(super) fn age(&self) -> String {
        let at = match &self.screen.analysed_map {
            Some(read) => read.map.at,
            None => self.pool.at,
        };
        ago(self.app.host.frame.mono, at)
    }

    pub(super) fn map_state(&self) -> String {
        let exact = match &self.screen.analysed_map {
            None => "",
            Some(read) if read.map.exact => "exact, ",
            Some(_) => "approximate, ",
        };
        format!("{exact}read {} ago", self.age())
    }
}

/// Returns the mark for an approximate size.
fn approximate(is_approximate: bool) -> &'static str {
    if is_approximate { "~" } else { "" }
}

/// Shortens GPU names: `NVIDIA GeForce RTX 4090` becomes `RTX 4090`.
pub(super) fn card_name(gpu: &Gpu) -> &str {
    let name = gpu.name.strip_prefix("NVIDIA ").unwrap_or(&gpu.name);
    name.strip_prefix("GeForce ").unwrap_or(name)
}

/// Formats an age, such as `0.2s` or `14s`.
fn ago(now: Mono, at: Mono) -> String {
    let ms = now.since(at).0;
    if ms < 10_000 { format!("{}.{}s", ms / 1_000, ms / 100 % 10) } else { span_text(Millis(ms)) }
}
