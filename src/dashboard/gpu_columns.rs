//! The rows and columns of the GPU table: one row for each GPU and each MIG instance.

use std::collections::BTreeSet;
use std::sync::{Arc, LazyLock};

use gputop_explain::ranks::RankState;
use gputop_model::accounting::{Accounting, account_pools};
use gputop_model::frame::Frame;
use gputop_model::gpu::{GPU_FIGURES, Gpu, GpuFigure, HealthState, Memory, MigInstance, Throttle};
use gputop_model::history::{GpuMetric, SeriesKey};
use gputop_model::reading::Reason;
use gputop_model::units::{Bytes, GpuUuid, Millis};
use jiff::tz::TimeZone;

use crate::dashboard::emphasis::Emphasis;
use crate::dashboard::host_state::HostState;
use crate::dashboard::memory_parts::split_of;
use crate::dashboard::rows::{ProcessRow, full_in};
use crate::dashboard::sizes::gib;
use crate::dashboard::table::{Align, Cell, Column};
use crate::dashboard::times::span_text;
use crate::dashboard::why::stable_answer;

/// A GPU or a MIG instance in a frame.
#[derive(Debug, Clone)]
pub struct GpuRow {
    frame: Arc<Frame>,
    gpu: usize,
    mig: Option<usize>,
    /// State of the rank on this GPU, if it waits or holds up others.
    activity: Option<GpuNote>,
    /// Set if the memory is full soon.
    full: Option<GpuNote>,
    /// The tensors that grow on this GPU, if known.
    growth: Option<String>,
}

impl GpuRow {
    /// Returns a row for each GPU in NVML order, each followed by its MIG instances.
    pub fn of_frame(frame: &Arc<Frame>) -> Vec<Self> {
        let row = |gpu, mig| Self {
            frame: Arc::clone(frame),
            gpu,
            mig,
            activity: None,
            full: None,
            growth: None,
        };
        frame
            .gpus
            .iter()
            .enumerate()
            .flat_map(|(g, gpu)| {
                std::iter::once(row(g, None))
                    .chain((0..gpu.mig.len()).map(move |m| row(g, Some(m))))
            })
            .collect()
    }

    /// Returns the GPU rows of a frame, including notes that need data from outside the frame.
    pub fn of_host(host: &HostState) -> Vec<Self> {
        let frame = &host.frame;
        let mut rows = Self::of_frame(frame);
        for row in &mut rows {
            row.full = full_note(&host.processes.all_rows, row.gpu());
            row.growth = host.holders.growth_note(row.gpu(), frame);
            row.activity = rank_note(row.gpu(), host)
                .or_else(|| why_note(row.gpu(), host))
                .or_else(|| quiet_rank_note(row.gpu(), host));
        }
        rows
    }

    pub fn gpu(&self) -> &Gpu {
        &self.frame.gpus[self.gpu]
    }

    fn mig(&self) -> Option<&MigInstance> {
        self.gpu().mig.get(self.mig?)
    }

    /// Returns the index of the row's GPU, not counting MIG instances.
    pub fn position(&self) -> usize {
        self.gpu
    }

    pub fn is_instance(&self) -> bool {
        self.mig.is_some()
    }

    fn memory(&self) -> &Memory {
        self.mig().map_or(&self.gpu().memory, |m| &m.memory)
    }

    /// Returns the parts of the memory in use.
    pub fn split(&self) -> Option<Accounting> {
        match self.mig() {
            Some(mig) => instance_split(&mig.memory),
            None => split_of(self.gpu(), &self.frame),
        }
    }

    pub fn is_stale(&self) -> bool {
        self.gpu().health.state != HealthState::Answering
    }

    /// Returns the cell of a column, which is empty in the column [`BAR`].
    pub fn cell(&self, column: &Column<Self>, zone: &TimeZone) -> Cell {
        let is_column =
            |figure: &&GpuFigure| figure.column.is_some_and(|c| c.title == column.title);
        let cell = match GPU_FIGURES.iter().find(is_column) {
            Some(figure) => figure_cell(figure, self),
            None => (column.cell)(self, zone),
        };
        cell.dim_if(self.is_stale())
    }

    /// Returns the cell of a GPU, or a dash in the row of a MIG instance.
    fn gpu_only(&self, cell: impl FnOnce(&Gpu) -> Cell) -> Cell {
        if self.is_instance() { Cell::missing() } else { cell(self.gpu()) }
    }
}

/// Returns the time until the steady growth of its processes fills the GPU, if that is soon, and the process that grows
/// fastest.
pub(super) fn full_soon<'a>(
    processes: &'a [ProcessRow],
    gpu: &Gpu,
) -> Option<(Millis, &'a ProcessRow)> {
    let is_on_gpu = |row: &&ProcessRow| row.gpu().is_some_and(|own| own.uuid == gpu.uuid);
    let on_gpu = processes.iter().filter(is_on_gpu);
    let growth = on_gpu.clone().map(ProcessRow::expected_growth).sum();
    let time = full_in(gpu.memory.free.get()?, growth)?;
    let fastest = on_gpu.max_by(|a, b| a.expected_growth().total_cmp(&b.expected_growth()))?;
    Some((time, fastest))
}

/// Returns `full in ~44s: leak.py` if the memory of the GPU is full soon.
pub fn full_note(processes: &[ProcessRow], gpu: &Gpu) -> Option<GpuNote> {
    let (time, fastest) = full_soon(processes, gpu)?;
    let text = format!("full in ~{}: {}", span_text(time), fastest.program());
    Some(GpuNote { text, emphasis: Emphasis::Warn })
}

fn label(row: &GpuRow, _: &TimeZone) -> Cell {
    match row.mig() {
        Some(mig) => {
            Cell::new(format!(":{}", mig.gpu_instance.get().unwrap_or(mig.index)), Emphasis::Dim)
        }
        None => Cell::text(row.gpu().index.to_string()),
    }
}

fn bytes(value: Option<Bytes>) -> Cell {
    Cell::known(value.map(gib))
}

/// Percentage of memory in use above which the next request may fail.
const NEARLY_FULL: f64 = 95.0;
const NEARLY_FULL_NOTE: &str = "nearly full";

/// Returns a cell with the used memory in percent of a total: `42`, or `!97` in the error colour.
pub fn share(memory: &Memory, total: Option<Bytes>) -> Cell {
    let (Some(total), Some(used)) = (total, memory.taken()) else {
        return Cell::missing();
    };
    let percent = used.0 as f64 * 100.0 / total.0.max(1) as f64;
    if is_nearly_full(memory) {
        Cell::new(format!("!{percent:.0}"), Emphasis::Bad)
    } else {
        Cell::text(format!("{percent:.0}"))
    }
}

fn is_nearly_full(memory: &Memory) -> bool {
    let (total, used) = (memory.total.get(), memory.taken());
    total
        .zip(used)
        .is_some_and(|(total, used)| used.0 as f64 * 100.0 > total.0 as f64 * NEARLY_FULL)
}

/// Returns the cell of a GPU metric, or a dash in the row of a MIG instance, for which there are no metrics.
fn figure_cell(figure: &GpuFigure, row: &GpuRow) -> Cell {
    row.gpu_only(|gpu| match figure.field.read(gpu) {
        Ok(value) if (figure.is_bad)(gpu) => Cell::new(value.cell(), Emphasis::Bad),
        Ok(value) => Cell::text(value.cell()),
        Err(_) => Cell::missing(),
    })
}

fn note(row: &GpuRow, _: &TimeZone) -> Cell {
    if let Some(mig) = row.mig() {
        return Cell::new(mig.profile.value().map_or("MIG", String::as_str), Emphasis::Dim);
    }
    let grows = row.full.is_some() || row.growth.is_some();
    // Growth, such as `full in ~9s`, says more than that the GPU is nearly full.
    let is_useful = |note: &GpuNote| !grows || note.text != NEARLY_FULL_NOTE;
    let first = notes(row.gpu(), &row.frame).into_iter().find(is_useful);
    if let Some(bad) = first.as_ref().filter(|note| note.emphasis == Emphasis::Bad) {
        return Cell::new(bad.text.clone(), bad.emphasis);
    }
    let warning = |text| GpuNote { text, emphasis: Emphasis::Warn };
    let growth = row.growth.clone().map(warning);
    let parts: Vec<_> =
        [row.full.clone(), row.activity.clone(), growth, first].into_iter().flatten().collect();
    let emphasis = match &parts[..] {
        [] => return Cell::text(""),
        [only] => only.emphasis,
        // Beside a minor note, what a rank does stands out.
        _ if grows || row.activity.is_some() => Emphasis::Warn,
        [first, ..] => first.emphasis,
    };
    let texts: Vec<_> = parts.into_iter().map(|part| part.text).collect();
    Cell::new(texts.join("; "), emphasis)
}

/// Returns what the rank on a GPU does, if it waits or holds up others. While the display is rewound, the states of that
/// time are not known.
fn rank_note(gpu: &Gpu, host: &HostState) -> Option<GpuNote> {
    let states = host.jobs.states_on(gpu.index).filter(|_| !host.is_rewound());
    let state = states.max_by_key(|state| matches!(state, RankState::Waits { .. }))?;
    let emphasis = match state {
        RankState::Runs | RankState::NotReadYet | RankState::NotReadable(_) => return None,
        RankState::Waits { .. } => Emphasis::Normal,
        _ => Emphasis::Warn,
    };
    Some(GpuNote { text: state.to_string(), emphasis })
}

/// Returns why a GPU has little to do.
fn why_note(gpu: &Gpu, host: &HostState) -> Option<GpuNote> {
    let (_, answer) = stable_answer(host, gpu)?;
    Some(GpuNote { text: answer.note.clone(), emphasis: Emphasis::Normal })
}

/// Time over which the GPUs of a job are compared, and the SM use in percent below and above which one differs.
const COMPARED: Millis = Millis(30_000);
const MAX_QUIET: f32 = 20.0;
const MIN_BUSY: f32 = 60.0;
/// Minimum number of other GPUs: of two, either may be the one that differs.
const MIN_OTHERS: usize = 2;

/// Returns `SM 2 %, other ranks 97 %` if the GPU of a rank has had little to do, while all other GPUs of its job on this
/// host were busy.
fn quiet_rank_note(gpu: &Gpu, host: &HostState) -> Option<GpuNote> {
    if host.is_rewound() || gpu.sm.get()?.0 >= f64::from(MAX_QUIET) {
        return None;
    }
    // The rank comes last, because it may be that of a process group, which has to be searched.
    let is_rank = |row: &&ProcessRow| row.ended().is_none() && row.rank().get().is_some();
    let rows = || host.processes.all_rows.iter();
    let mut on_gpu = rows().filter(|row| row.gpu().is_some_and(|its| its.uuid == gpu.uuid));
    let own = on_gpu.find(is_rank)?;
    // A rank that starts has nothing to do yet.
    own.shown_age().filter(|age| age.0 >= 2 * COMPARED.0)?;
    let job = rows().filter(|row| row.is_of_job_of(own)).filter(is_rank);
    let others = job.filter_map(ProcessRow::gpu);
    let others: BTreeSet<&GpuUuid> = others.map(|other| &other.uuid).collect();
    let others = others.into_iter().filter(|uuid| **uuid != gpu.uuid);
    let used = |uuid: &GpuUuid| {
        let series = host.history.series(&SeriesKey::Gpu(uuid.clone(), GpuMetric::Sm))?;
        Some(series.levels(host.frame.mono, COMPARED, 1).pop()??.mean)
    };
    let quiet = used(&gpu.uuid).filter(|used| *used < MAX_QUIET)?;
    let others: Vec<f32> = others.map(used).collect::<Option<_>>()?;
    if others.len() < MIN_OTHERS || others.iter().any(|used| *used < MIN_BUSY) {
        return None;
    }
    let busy = others.iter().sum::<f32>() / others.len() as f32;
    let text = format!("SM {quiet:.0} %, other ranks {busy:.0} %");
    Some(GpuNote { text, emphasis: Emphasis::Warn })
}

/// A message about a GPU.
#[derive(Debug, Clone)]
pub struct GpuNote {
    pub text: String,
    pub emphasis: Emphasis,
}

/// Returns the messages about a GPU, most urgent first.
pub fn notes(gpu: &Gpu, frame: &Frame) -> Vec<GpuNote> {
    let mut notes = Vec::new();
    let mut add = |emphasis, text: String| notes.push(GpuNote { text, emphasis });
    let since = gpu.health.since.map_or(Millis(0), |since| frame.mono.since(since));
    match gpu.health.state {
        HealthState::Lost if gpu.health.since.is_none() => add(Emphasis::Bad, "LOST".into()),
        HealthState::Lost => add(Emphasis::Bad, format!("LOST {} ago", span_text(since))),
        HealthState::Asleep => add(Emphasis::Dim, "asleep".into()),
        HealthState::Denied => add(Emphasis::Dim, "not yours".into()),
        HealthState::Silent => add(Emphasis::Bad, format!("no answer {}", span_text(since))),
        _ => {}
    }
    if let Some(why) = gpu.why_no_figures() {
        add(Emphasis::Bad, format!("no figures: {why}"));
    }
    if gpu.ecc.remap_failed.get() == Some(true) {
        add(Emphasis::Bad, "row remap failed".into());
    }
    if let Some(action) = gpu.recovery_action.get().filter(|action| action.is_needed()) {
        add(Emphasis::Bad, format!("needs {}", action.words()));
    }
    // Before the errors that caused it, because a reset is what somebody has to do.
    if gpu.ecc.remap_pending.get() == Some(true) {
        add(Emphasis::Bad, "row remap: reset".into());
    }
    if let Some(errors) = gpu.ecc.uncorrected.get().filter(|&n| n > 0) {
        add(Emphasis::Bad, format!("{errors} ECC uncorrected"));
    }
    let throttle = Throttle::informative(gpu.throttle.value().map_or(&[], Vec::as_slice));
    for reason in throttle.iter().filter(|reason| reason.is_trouble()) {
        add(Emphasis::Bad, reason.words().into());
    }
    if is_nearly_full(&gpu.memory) {
        add(Emphasis::Warn, NEARLY_FULL_NOTE.into());
    }
    if let (Some(width), Some(max)) = (gpu.pcie.width.get(), gpu.pcie.max_width.get())
        && width < max
    {
        add(Emphasis::Warn, format!("PCIe x{width} of x{max}"));
    }
    // Some GPUs have links that nothing is connected to, so compare with GPUs of the same model.
    let is_peer = |other: &&Gpu| other.name == gpu.name;
    let peers = frame.gpus.iter().filter(is_peer).filter_map(|peer| peer.nvlinks_up.get());
    let peers: Vec<u32> = peers.collect();
    if let (Some(up), Some(&most)) = (gpu.nvlinks_up.get(), peers.iter().max())
        && up < most
        && (up > 0 || has_lost_every_link(&gpu.name, &peers))
    {
        add(Emphasis::Warn, format!("{up} of {most} NVLinks"));
    }
    match &gpu.mig_unread {
        Some(why) => add(Emphasis::Warn, format!("MIG: {}", why.reason.words())),
        None if gpu.mig_enabled.get() == Some(true) && gpu.mig.is_empty() => {
            add(Emphasis::Warn, "MIG on, no instance".into());
        }
        None => {}
    }
    if let Some(why) = gpu.processes.why().filter(|why| why.reason != Reason::NotRead) {
        // Nothing is wrong with a card or a virtual GPU that has no list.
        let is_usual = why.reason == Reason::Unsupported;
        let emphasis = if is_usual { Emphasis::Dim } else { Emphasis::Warn };
        // A missing permission needs no details in a narrow column.
        let is_denied = why.reason == Reason::Denied;
        let words = if is_denied { why.reason.words().into() } else { why.to_string() };
        add(emphasis, format!("processes: {words}"));
    }
    if let Some(split) = account_pools(gpu, frame.pools.as_ref())
        .filter(|s| s.unattributed > Bytes::gib(1) && !s.processes_unknown)
    {
        add(Emphasis::Warn, format!("{} GiB unattributed", gib(split.unattributed)));
    }
    if let Some(mode) = gpu.board.compute_mode.value().filter(|mode| *mode != "default") {
        add(Emphasis::Dim, mode.clone());
    }
    if !gpu.mig.is_empty() {
        let s = if gpu.mig.len() == 1 { "" } else { "s" };
        add(Emphasis::Dim, format!("MIG, {} instance{s}", gpu.mig.len()));
    }
    // The driver reports the power cap for moments. Far below the cap, that says nothing.
    let is_at_cap = gpu
        .power
        .get()
        .zip(gpu.power_cap.get())
        .is_none_or(|(power, cap)| f64::from(power.0) >= f64::from(cap.0) * AT_POWER_CAP);
    let is_minor = |r: &&Throttle| {
        !r.is_trouble() && **r != Throttle::Idle && (**r != Throttle::SwPowerCap || is_at_cap)
    };
    for reason in throttle.iter().filter(is_minor) {
        add(Emphasis::Dim, reason.words().into());
    }
    if let Some(count) = gpu.ecc.corrected.get().filter(|&n| n > 0) {
        add(Emphasis::Dim, format!("{count} ECC corrected"));
    }
    notes
}

/// Returns true if a GPU without NVLinks should have them: all others of its model have the same number. This does not
/// hold for cards in slots, which are linked in pairs or not at all.
fn has_lost_every_link(model: &str, links_of_model: &[u32]) -> bool {
    const MIN_OTHERS: usize = 3;
    const MIN_LINKS: u32 = 12;
    let others: Vec<u32> = links_of_model.iter().copied().filter(|links| *links > 0).collect();
    let is_in_slot = ["PCIE", "NVL"].iter().any(|kind| model.to_uppercase().contains(kind));
    !is_in_slot
        && others.len() >= MIN_OTHERS
        && others.len() + 1 == links_of_model.len()
        && others.iter().all(|links| *links == others[0] && *links >= MIN_LINKS)
}

/// Share of its power cap that a GPU draws while the cap limits it.
const AT_POWER_CAP: f64 = 0.8;

/// Title of the column with the parts of the memory as a bar.
pub const BAR: &str = "VRAM GiB";
/// Title of the column with the most urgent note.
pub const NOTE: &str = "NOTE";

/// Columns for GPU metrics, shown between the memory and notes columns.
pub static GPU_COLUMNS: LazyLock<Vec<Column<GpuRow>>> = LazyLock::new(|| {
    let mut columns = Vec::from(MEMORY_COLUMNS);
    for figure in GPU_FIGURES {
        let Some(column) = figure.column else {
            continue;
        };
        let (title, help) = (column.title, column.help);
        columns.push(Column::right(title, column.width, column.priority, empty_cell, help));
    }
    columns.push(NOTE_COLUMN);
    columns
});

/// Returns the text of a column that contains graphics, or the figure that [`GpuRow::cell`] adds.
fn empty_cell(_: &GpuRow, _: &TimeZone) -> Cell {
    Cell::text("")
}

const MEMORY_COLUMNS: [Column<GpuRow>; 4] = [
    Column::right("GPU", 3, 0, label, "NVML index; :N is a MIG instance."),
    Column {
        align: Align::Rest,
        ..Column::right(
            BAR,
            26,
            1,
            empty_cell,
            "Memory of the GPU in parts that add up to its total: tensors, cache of allocators, other, and free.",
        )
    },
    Column::right(
        "USED",
        6,
        2,
        |row, _| bytes(row.memory().taken()),
        "Memory in use in GiB, including what the driver reserves (about 0.6 GiB), which nvidia-smi counts separately.",
    ),
    Column::right(
        "FREE",
        6,
        2,
        |row, _| match row.memory().free.get() {
            Some(free) if is_nearly_full(row.memory()) => {
                Cell::new(format!("!{}", gib(free)), Emphasis::Bad)
            }
            free => bytes(free),
        },
        "Memory in GiB that the driver can still allocate; ! marks less than 5 % of the total. A new process (FITS) can allocate about 0.5 GiB less.",
    ),
];

const NOTE_COLUMN: Column<GpuRow> = Column::left(
    NOTE,
    17,
    3,
    note,
    "Most urgent first: lost, not responding, ECC errors, full soon, a rank that waits or holds up others, why the GPU is idle, throttling, PCIe.",
);

/// Splits the memory of a MIG instance into used and free only, because an instance has no process list.
fn instance_split(memory: &Memory) -> Option<Accounting> {
    let (total, free) = (memory.total.get()?, memory.free.get()?);
    Some(Accounting { total, free, processes: memory.taken()?, ..Accounting::default() })
}

/// Returns the reason why the GPU table is empty: the driver does not respond, has failed, or reports no GPU.
pub fn why_no_gpus(frame: &Frame) -> String {
    let why = frame.driver.as_ref().and_then(|driver| driver.gpus.why());
    why.map_or("No GPU data yet".into(), ToString::to_string)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the first note about each GPU.
    fn first_notes(gpus: Vec<Gpu>) -> Vec<String> {
        let frame = Frame { gpus, ..Frame::default() };
        let first =
            |gpu| notes(gpu, &frame).first().map_or(String::new(), |note| note.text.clone());
        frame.gpus.iter().map(first).collect()
    }

    #[test]
    fn the_note_is_what_somebody_has_to_act_on() {
        let throttled = |reasons: &[Throttle]| Gpu {
            throttle: gputop_model::Reading::Value(reasons.to_vec()),
            ..Gpu::default()
        };
        let ecc = |pending: bool| Gpu {
            ecc: gputop_model::gpu::Ecc {
                uncorrected: 1.into(),
                remap_pending: pending.into(),
                ..Default::default()
            },
            ..Gpu::default()
        };
        let cases = [
            (throttled(&[Throttle::HwSlowdown, Throttle::HwPowerBrake]), "power brake"),
            (throttled(&[Throttle::HwSlowdown]), "hardware slowdown"),
            (throttled(&[Throttle::SwThermal]), "too warm"),
            (throttled(&[Throttle::Idle, Throttle::SwThermal, Throttle::SwPowerCap]), ""),
            (throttled(&[Throttle::Idle, Throttle::HwSlowdown]), "hardware slowdown"),
            (ecc(true), "row remap: reset"),
            (ecc(false), "1 ECC uncorrected"),
        ];
        for (gpu, expected) in cases {
            assert_eq!(first_notes(vec![gpu]), [expected]);
        }
    }

    #[test]
    fn a_gpu_that_lost_its_nvlinks_differs_from_a_card_without_a_bridge() {
        let notes = |model: &str, links: &[u32]| {
            let gpu =
                |up: &u32| Gpu { name: model.into(), nvlinks_up: (*up).into(), ..Gpu::default() };
            first_notes(links.iter().map(gpu).collect())
        };
        assert_eq!(notes("NVIDIA B200", &[18, 0, 18, 18]), ["", "0 of 18 NVLinks", "", ""]);
        assert_eq!(notes("NVIDIA B200", &[18, 17, 18, 18]), ["", "17 of 18 NVLinks", "", ""]);
        assert_eq!(notes("NVIDIA B200", &[18, 0, 0, 18]), [""; 4]);
        assert_eq!(notes("NVIDIA A100 80GB PCIe", &[12, 12, 12, 12, 0]), [""; 5]);
        assert_eq!(notes("NVIDIA RTX A6000", &[4, 4, 4, 4, 0]), [""; 5]);
        assert_eq!(notes("NVIDIA H100 80GB HBM3", &[0, 18]), [""; 2]);
    }

    #[test]
    fn every_figure_with_a_column_has_its_cell() {
        let frame = Frame { gpus: vec![Gpu::default()], ..Frame::default() };
        let rows = GpuRow::of_frame(&Arc::new(frame));
        let titles: Vec<_> = GPU_COLUMNS.iter().map(|column| column.title).collect();
        for figure in GPU_FIGURES {
            let Some(column) = figure.column else {
                continue;
            };
            assert_eq!(titles.iter().filter(|title| **title == column.title).count(), 1);
            assert_eq!(figure_cell(figure, &rows[0]), Cell::missing());
        }
    }
}
