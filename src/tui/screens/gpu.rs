//! One GPU: where its memory is, its history, its processes, and everything NVML says about it.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;

use super::gpu_columns::{has_pools, notes, parts};
use super::memory::MemoryScreen;
use super::process::ProcessScreen;
use super::{Screen, ScreenDef, Step, moved};
use crate::model::accounting::{Accounting, account_pools};
use crate::model::frame::Frame;
use crate::model::gpu::{Gpu, HealthState, Traffic};
use crate::model::history::{GpuMetric, SeriesKey};
use crate::model::reading::{Reading, Reason};
use crate::model::units::{Bytes, BytesPerSecond, GpuUuid, Mono, apportion};
use crate::tui::action::Action;
use crate::tui::app::App;
use crate::tui::columns::{PROCESS_COLUMNS, late};
use crate::tui::rows::ProcessRow;
use crate::tui::theme::{Role, Theme};
use crate::tui::widgets::bar;
use crate::tui::widgets::cells::{put, put_all};
use crate::tui::widgets::facts::{self, Fact};
use crate::tui::widgets::scroll::Scroll;
use crate::tui::widgets::table::{self, View, scrolled};
use crate::tui::widgets::timeline::{Timeline, span_words};

pub const DEF: ScreenDef = ScreenDef {
    id: "gpu",
    title: "GPU",
    words: &[
        ("each tick", "Read with every frame."),
        (
            "10 s",
            "Read every ten seconds, since it changes rarely or its call is dear.",
        ),
        (
            "while shown",
            "Read only while this screen is open: the call costs 2 to 40 ms.",
        ),
        ("once", "Read when the GPU was opened."),
    ],
    sample: |app| {
        Some(Box::new(GpuScreen::new(
            app.frame.gpus.first()?.uuid.clone(),
        )))
    },
};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Pane {
    Processes,
    Facts,
}

#[derive(Debug)]
pub struct GpuScreen {
    uuid: GpuUuid,
    pane: Pane,
    cursor: usize,
    scroll: Scroll,
}

/// The least width of a column of facts.
const FACTS: u16 = 58;

impl GpuScreen {
    pub fn new(uuid: GpuUuid) -> Self {
        Self {
            uuid,
            pane: Pane::Processes,
            cursor: 0,
            scroll: Scroll::default(),
        }
    }

    fn gpu<'a>(&self, app: &'a App) -> Option<&'a Gpu> {
        app.frame.gpus.iter().find(|gpu| gpu.uuid == self.uuid)
    }

    fn rows(&self, app: &App) -> Vec<ProcessRow> {
        app.rows
            .iter()
            .filter(|row| row.id().gpu.as_ref() == Some(&self.uuid))
            .cloned()
            .collect()
    }

    fn draw_processes(&self, app: &App, area: Rect, buffer: &mut Buffer) {
        let rows = self.rows(app);
        if rows.is_empty() {
            let gpu = self.gpu(app).and_then(|gpu| gpu.processes.why());
            let text = gpu.map_or("no process is on this GPU".into(), |why| {
                format!("processes: {why}")
            });
            put(
                buffer,
                area.x + 1,
                area.y,
                &text,
                area.width,
                app.theme.style(Role::Dim),
            );
            return;
        }
        let height = usize::from(area.height.saturating_sub(1));
        let offset = scrolled(self.cursor, rows.len(), height);
        let cursor = (self.pane == Pane::Processes).then_some(self.cursor.min(rows.len() - 1));
        let view = View {
            cursor,
            offset,
            sorted: app.sort,
            descending: !app.inverted,
            late: late(&app.frame),
        };
        table::draw(
            PROCESS_COLUMNS,
            &rows,
            ProcessRow::is_stale,
            &view,
            area,
            buffer,
            &app.theme,
        );
    }

    fn draw_charts(gpu: &Gpu, app: &App, area: Rect, buffer: &mut Buffer) {
        let total = gpu.memory.total.get().unwrap_or(Bytes(1));
        let cap = gpu
            .power_cap
            .get()
            .or(gpu.board.power_cap_default.get())
            .map_or(1_000, |cap| cap.0 / 1_000);
        #[allow(clippy::cast_precision_loss)]
        let charts = [
            (
                GpuMetric::Used,
                "VRAM used",
                total.0 as f32,
                total.short(),
                Role::Processes,
            ),
            (GpuMetric::Sm, "SM", 100.0, "100%".to_owned(), Role::Chart),
            (
                GpuMetric::MemoryBandwidth,
                "memory bandwidth",
                100.0,
                "100%".to_owned(),
                Role::Chart,
            ),
            (
                GpuMetric::Power,
                "power",
                cap as f32,
                format!("{cap}W"),
                Role::Chart,
            ),
        ];
        let across = usize::from((area.width / 45).clamp(1, 4));
        let width = area.width / u16::try_from(across).unwrap_or(1);
        for (i, (metric, title, top, top_label, role)) in charts.iter().take(across).enumerate() {
            let x = area.x + width * u16::try_from(i).unwrap_or(0);
            let key = SeriesKey::Gpu(gpu.uuid.clone(), *metric);
            Timeline {
                title,
                series: app.history.series(&key),
                end: app.frame.mono,
                length: app.chart_length(),
                top: *top,
                top_label,
                role: *role,
            }
            .draw(
                Rect {
                    x,
                    width: width.saturating_sub(1),
                    ..area
                },
                buffer,
                &app.theme,
            );
        }
    }
}

/// `GPU 0  NVIDIA H200  GPU-caae…  0000:3b:00`, and what is wrong with it.
fn draw_title(gpu: &Gpu, app: &App, area: Rect, buffer: &mut Buffer) {
    let theme = &app.theme;
    let name = format!("GPU {}  {}", gpu.index, gpu.name);
    let bus = gpu.board.pci_bus.value().map_or("", String::as_str);
    let mut pieces = vec![
        (name.as_str(), theme.style(Role::Title)),
        ("  ", theme.style(Role::Dim)),
        (bus, theme.style(Role::Dim)),
    ];
    let notes = notes(gpu, &app.frame);
    for note in &notes {
        pieces.push(("  ", theme.style(Role::Dim)));
        pieces.push((&note.text, theme.style(note.role)));
    }
    put_all(buffer, area.x + 1, area.y, area.right(), &pieces);
}

/// The lines of the accounting: parts in GiB that add up, and the sum.
fn accounting_facts(gpu: &Gpu, split: &Accounting) -> Vec<Fact> {
    let step = Bytes::gib(1).0 / 100;
    let printed = apportion(
        &[
            split.processes,
            split.unattributed,
            split.driver,
            split.free,
            split.allocated,
            split.idle,
            split.other,
        ],
        step,
    );
    let all = [printed[0], printed[4], printed[5], printed[6]];
    let processes = Bytes(all.iter().map(|b| b.0).sum());
    let text = |bytes: Bytes| format!("{:>8.2} GiB", bytes.as_gib());
    let sum = Bytes(printed.iter().map(|b| b.0).sum());
    let count = gpu.processes.value().map_or(0, Vec::len);
    let about = if split.approximate { "~" } else { "" };
    let other = if split.processes_unknown {
        "and processes whose memory is not told"
    } else {
        ""
    };
    let mut list = vec![
        Fact::Heading("Memory".into()),
        Fact::Value(
            "processes",
            format!("{}{about}  {count} of them", text(processes)),
            Role::Processes,
            "",
        ),
    ];
    if has_pools(split) {
        let part = |name, size, words: &str, role| {
            Fact::Value(name, format!("{}  {words}", text(size)), role, "peek")
        };
        list.extend([
            part("  allocated", printed[4], "live tensors", Role::Allocated),
            part("  idle", printed[5], "cached, in no tensor", Role::Idle),
            part("  other", printed[6], "context, libraries", Role::OtherVram),
            part("  not looked into", printed[0], "", Role::Processes),
        ]);
    }
    list.extend([
        Fact::Value(
            "other",
            format!("{}  {other}", text(printed[1])),
            Role::Unattributed,
            "",
        ),
        Fact::Value("driver", text(printed[2]), Role::Driver, ""),
        Fact::Value("free", text(printed[3]), Role::Text, ""),
        Fact::Value("total", text(sum), Role::Text, "each tick"),
    ]);
    list
}

fn rate(value: &BytesPerSecond) -> String {
    match value.0 {
        n if n < 10_000_000 => format!("{:.1} MB/s", n as f64 / 1e6),
        n if n < 10_000_000_000 => format!("{:.0} MB/s", n as f64 / 1e6),
        n => format!("{:.1} GB/s", n as f64 / 1e9),
    }
}

fn facts_of(gpu: &Gpu, frame: &Frame, theme: &Theme) -> Vec<Fact> {
    let now = frame.mono;
    let mut list = Vec::new();
    if let Some(split) = account_pools(gpu, frame.pools.as_ref()) {
        list.extend(accounting_facts(gpu, &split));
    } else {
        list.push(Fact::Heading("Memory".into()));
        list.push(Fact::reading(
            "total",
            &gpu.memory.total,
            "each tick",
            theme,
            ToString::to_string,
        ));
    }
    list.extend(activity_facts(gpu, theme));
    list.extend(power_facts(gpu, theme));
    list.extend(link_facts(gpu, theme));
    list.extend(error_facts(gpu, theme));
    list.extend(board_facts(gpu, theme));
    list.extend(mig_facts(gpu, theme));
    list.push(Fact::Blank);
    list.push(Fact::Heading("Read".into()));
    let ago = |at: Option<Mono>| {
        at.map_or("never".into(), |at| {
            format!("{} ago", span_words(now.since(at)))
        })
    };
    list.push(Fact::Value("figures", ago(Some(gpu.at)), Role::Text, ""));
    list.push(Fact::Value(
        "processes",
        ago(gpu.processes_at),
        Role::Text,
        "",
    ));
    list.push(Fact::Value(
        "use by process",
        ago(gpu.utilization_at),
        Role::Text,
        "",
    ));
    list
}

fn activity_facts(gpu: &Gpu, theme: &Theme) -> Vec<Fact> {
    let percent = |p: &crate::model::units::Percent| format!("{:.0} %", p.0);
    vec![
        Fact::Blank,
        Fact::Heading("Activity".into()),
        Fact::reading("SM", &gpu.sm, "each tick", theme, percent),
        Fact::reading(
            "memory bandwidth",
            &gpu.memory_bandwidth,
            "each tick",
            theme,
            percent,
        ),
        Fact::reading("encoder", &gpu.encoder, "10 s", theme, percent),
        Fact::reading("decoder", &gpu.decoder, "10 s", theme, percent),
    ]
}

fn power_facts(gpu: &Gpu, theme: &Theme) -> Vec<Fact> {
    let watts = |w: &crate::model::units::MilliWatts| format!("{:.1} W", f64::from(w.0) / 1_000.0);
    let celsius = |t: &crate::model::units::Celsius| format!("{} {}C", t.0, theme.glyphs.degree);
    let clock = |c: &crate::model::units::MegaHertz| format!("{} MHz", c.0);
    let reasons = |list: &Vec<crate::model::gpu::Throttle>| match list.as_slice() {
        [] => "none".into(),
        list => list
            .iter()
            .map(|r| r.words())
            .collect::<Vec<_>>()
            .join(", "),
    };
    let board = &gpu.board;
    vec![
        Fact::Blank,
        Fact::Heading("Power, heat, clocks".into()),
        Fact::reading("power", &gpu.power, "each tick", theme, watts),
        Fact::reading("power cap", &gpu.power_cap, "10 s", theme, watts),
        Fact::reading(
            "default cap",
            &board.power_cap_default,
            "once",
            theme,
            watts,
        ),
        Fact::reading("temperature", &gpu.temperature, "each tick", theme, celsius),
        Fact::reading(
            "memory temperature",
            &gpu.memory_temperature,
            "10 s",
            theme,
            celsius,
        ),
        Fact::reading(
            "slows down at",
            &board.slowdown_temperature,
            "once",
            theme,
            celsius,
        ),
        Fact::reading(
            "shuts down at",
            &board.shutdown_temperature,
            "once",
            theme,
            celsius,
        ),
        Fact::reading("fan", &gpu.fan, "10 s", theme, |p| format!("{:.0} %", p.0)),
        Fact::reading("SM clock", &gpu.sm_clock, "each tick", theme, clock),
        Fact::reading(
            "SM clock at most",
            &board.max_sm_clock,
            "once",
            theme,
            clock,
        ),
        Fact::reading("memory clock", &gpu.memory_clock, "each tick", theme, clock),
        Fact::reading(
            "memory clock at most",
            &board.max_memory_clock,
            "once",
            theme,
            clock,
        ),
        Fact::reading("performance state", &gpu.pstate, "each tick", theme, |p| {
            format!("P{p}")
        }),
        Fact::reading("slowed by", &gpu.throttle, "each tick", theme, reasons),
    ]
}

fn link_facts(gpu: &Gpu, theme: &Theme) -> Vec<Fact> {
    let pcie = &gpu.pcie;
    let traffic = gpu.traffic.clone().unwrap_or_else(not_shown);
    let energy = |e: &crate::model::units::MilliJoules| {
        format!("{:.2} kWh since the driver was loaded", e.0 as f64 / 3.6e9)
    };
    vec![
        Fact::Blank,
        Fact::Heading("Links".into()),
        Fact::reading(
            "PCIe generation",
            &pcie.generation,
            "10 s",
            theme,
            u32::to_string,
        ),
        Fact::reading(
            "at most",
            &pcie.max_generation,
            "once",
            theme,
            u32::to_string,
        ),
        Fact::reading("PCIe width", &pcie.width, "10 s", theme, |w| {
            format!("x{w}")
        }),
        Fact::reading("at most", &pcie.max_width, "once", theme, |w| {
            format!("x{w}")
        }),
        Fact::reading("PCIe to host", &traffic.pcie_tx, "while shown", theme, rate),
        Fact::reading(
            "PCIe from host",
            &traffic.pcie_rx,
            "while shown",
            theme,
            rate,
        ),
        Fact::reading(
            "PCIe replays",
            &traffic.pcie_replays,
            "while shown",
            theme,
            u32::to_string,
        ),
        Fact::reading(
            "NVLink sent",
            &traffic.nvlink_tx,
            "while shown",
            theme,
            rate,
        ),
        Fact::reading(
            "NVLink received",
            &traffic.nvlink_rx,
            "while shown",
            theme,
            rate,
        ),
        Fact::reading("energy", &traffic.energy, "while shown", theme, energy),
    ]
}

/// Traffic that nobody asked for: just now opened, or a recording of a time when nobody looked.
fn not_shown() -> Traffic {
    fn unread<T>() -> Reading<T> {
        Reading::missing(
            Reason::NotRead,
            "read, and recorded, only while this screen is open",
        )
    }
    Traffic {
        at: Mono::default(),
        pcie_tx: unread(),
        pcie_rx: unread(),
        pcie_replays: unread(),
        nvlink_tx: unread(),
        nvlink_rx: unread(),
        energy: unread(),
    }
}

fn error_facts(gpu: &Gpu, theme: &Theme) -> Vec<Fact> {
    let yes = |b: &bool| {
        if *b {
            "yes".to_owned()
        } else {
            "no".to_owned()
        }
    };
    let ecc = &gpu.ecc;
    vec![
        Fact::Blank,
        Fact::Heading("Memory errors".into()),
        Fact::reading("ECC on", &ecc.enabled, "10 s", theme, yes),
        Fact::reading("corrected", &ecc.corrected, "10 s", theme, u64::to_string),
        Fact::reading(
            "uncorrected",
            &ecc.uncorrected,
            "10 s",
            theme,
            u64::to_string,
        ),
        Fact::reading(
            "rows remapped",
            &ecc.remapped_correctable,
            "10 s",
            theme,
            u32::to_string,
        ),
        Fact::reading(
            "after uncorrectable",
            &ecc.remapped_uncorrectable,
            "10 s",
            theme,
            u32::to_string,
        ),
        Fact::reading(
            "remap waits for reset",
            &ecc.remap_pending,
            "10 s",
            theme,
            yes,
        ),
        Fact::reading("remap failed", &ecc.remap_failed, "10 s", theme, yes),
    ]
}

/// Figures of a GPU that does not answer: as it was, in one quiet colour.
fn quiet(facts: Vec<Fact>) -> Vec<Fact> {
    let dim = |fact| match fact {
        Fact::Value(name, text, _, _) => Fact::Value(name, text, Role::Dim, "as it was"),
        other => other,
    };
    facts.into_iter().map(dim).collect()
}

fn board_facts(gpu: &Gpu, theme: &Theme) -> Vec<Fact> {
    let board = &gpu.board;
    let text = |reading: &Reading<String>, name| {
        Fact::reading(name, reading, "once", theme, String::clone)
    };
    let health = match gpu.health.state {
        HealthState::Answering => "answering".to_owned(),
        HealthState::Silent => "a driver call has not returned".to_owned(),
        HealthState::Lost => gpu.health.detail.clone().unwrap_or_else(|| "lost".into()),
        HealthState::Unknown => "unknown".to_owned(),
    };
    vec![
        Fact::Blank,
        Fact::Heading("Board".into()),
        Fact::Value("health", health, Role::Text, "each tick"),
        Fact::Value("UUID", gpu.uuid.to_string(), Role::Text, "once"),
        text(&board.pci_bus, "PCI bus"),
        Fact::reading("device file", &board.minor, "once", theme, |n| {
            format!("/dev/nvidia{n}")
        }),
        text(&board.serial, "serial"),
        text(&board.vbios, "VBIOS"),
        text(&board.architecture, "architecture"),
        text(&board.compute_capability, "compute capability"),
        text(&board.compute_mode, "compute mode"),
        Fact::reading(
            "persistence mode",
            &board.persistence,
            "once",
            theme,
            |on| if *on { "on".into() } else { "off".into() },
        ),
        Fact::reading("MIG mode", &gpu.mig_enabled, "10 s", theme, |on| {
            if *on { "on".into() } else { "off".into() }
        }),
    ]
}

fn mig_facts(gpu: &Gpu, theme: &Theme) -> Vec<Fact> {
    let mut list = Vec::new();
    for mig in &gpu.mig {
        let profile = mig
            .profile
            .value()
            .map_or("profile unknown", String::as_str);
        list.push(Fact::Blank);
        list.push(Fact::Heading(format!(
            "MIG instance {}  {profile}",
            mig.gpu_instance.get().unwrap_or(mig.index)
        )));
        list.push(Fact::Value(
            "UUID",
            mig.uuid.to_string(),
            Role::Text,
            "10 s",
        ));
        list.push(Fact::reading(
            "used",
            &mig.memory.used,
            "each tick",
            theme,
            ToString::to_string,
        ));
        list.push(Fact::reading(
            "free",
            &mig.memory.free,
            "each tick",
            theme,
            ToString::to_string,
        ));
        list.push(Fact::reading(
            "total",
            &mig.memory.total,
            "each tick",
            theme,
            ToString::to_string,
        ));
    }
    list
}

impl Screen for GpuScreen {
    fn draw(&self, app: &App, area: Rect, buffer: &mut Buffer) {
        let Some(gpu) = self.gpu(app) else {
            put(
                buffer,
                area.x + 1,
                area.y,
                "this GPU is not in the list any more",
                area.width,
                app.theme.style(Role::Warn),
            );
            return;
        };
        draw_title(gpu, app, area, buffer);
        if let Some(split) = account_pools(gpu, app.frame.pools.as_ref())
            && area.height > 1
        {
            bar::draw(
                buffer,
                area.x + 1,
                area.y + 1,
                area.width.saturating_sub(2),
                &parts(&split, has_pools(&split), &app.theme),
            );
        }
        let left = area.height.saturating_sub(2);
        let chart = if left >= 18 {
            (left / 3).clamp(6, 14)
        } else {
            0
        };
        let wanted = u16::try_from(self.rows(app).len().max(1) + 1).unwrap_or(u16::MAX);
        let processes = wanted.min((left - chart) / 3 + 1).min(left - chart);
        let at = |y: u16, height: u16| Rect {
            x: area.x + 1,
            y: area.y + y,
            width: area.width.saturating_sub(2),
            height,
        };
        if chart > 0 {
            Self::draw_charts(gpu, app, at(2, chart), buffer);
        }
        self.draw_processes(
            app,
            Rect {
                x: area.x,
                width: area.width,
                ..at(2 + chart, processes)
            },
            buffer,
        );
        let rest = left.saturating_sub(chart + processes);
        if rest > 1 {
            let area = at(2 + chart + processes + 1, rest - 1);
            let stale = gpu.health.state != HealthState::Answering;
            let facts = facts_of(gpu, &app.frame, &app.theme);
            let lines = facts::lines(&if stale { quiet(facts) } else { facts }, area.width);
            let shown = facts::capacity(area, FACTS);
            let first = self.scroll.first(lines.len(), shown);
            let last = lines.len().saturating_sub(shown);
            facts::draw(&lines, first, area, FACTS, buffer, &app.theme);
            if last > 0 && self.pane == Pane::Processes {
                let hint = format!("{} more ", last.min(lines.len()));
                crate::tui::widgets::cells::put_right(
                    buffer,
                    area.x,
                    area.right(),
                    area.y - 1,
                    &format!("Tab scrolls {hint}"),
                    app.theme.style(Role::Dim),
                );
            }
        }
    }

    fn act(&mut self, action: Action, app: &App) -> Step {
        let rows = self.rows(app);
        match (self.pane, action) {
            (_, Action::NextPane) => {
                self.pane = if self.pane == Pane::Facts {
                    Pane::Processes
                } else {
                    Pane::Facts
                };
            }
            (_, Action::NextGpu | Action::PreviousGpu) => {
                let at = app
                    .frame
                    .gpus
                    .iter()
                    .position(|gpu| gpu.uuid == self.uuid)
                    .unwrap_or(0);
                let to = if action == Action::NextGpu {
                    at + 1
                } else {
                    at.wrapping_sub(1)
                };
                if let Some(gpu) = app.frame.gpus.get(to) {
                    *self = Self {
                        pane: self.pane,
                        ..Self::new(gpu.uuid.clone())
                    };
                }
            }
            (Pane::Processes, Action::Open) => {
                if let Some(row) = rows.get(self.cursor.min(rows.len().saturating_sub(1))) {
                    return Step::Open(Box::new(ProcessScreen::new(row.id())));
                }
            }
            (_, Action::Memory) => {
                let under = rows.get(self.cursor.min(rows.len().saturating_sub(1)));
                let row = under.filter(|_| self.pane == Pane::Processes);
                let row = row.or_else(|| MemoryScreen::largest(&app.all_rows, &self.uuid));
                if let Some(row) = row {
                    return Step::Open(Box::new(MemoryScreen::new(row.id())));
                }
            }
            (Pane::Processes, action) => match moved(self.cursor, rows.len(), 10, action) {
                Some(at) => self.cursor = at,
                None => return Step::Ignored,
            },
            (Pane::Facts, action) => {
                if !self.scroll.act(action) {
                    return Step::Ignored;
                }
            }
        }
        Step::Stay
    }

    fn footer(&self) -> &'static [Action] {
        &[
            Action::Back,
            Action::Open,
            Action::Memory,
            Action::NextPane,
            Action::NextGpu,
            Action::ZoomOut,
            Action::Help,
        ]
    }

    fn focus(&self) -> Option<GpuUuid> {
        Some(self.uuid.clone())
    }

    fn def(&self) -> &'static ScreenDef {
        &DEF
    }
}
