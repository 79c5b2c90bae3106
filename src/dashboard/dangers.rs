//! Present dangers of a host: what goes wrong now, in contrast to incidents, which have happened.

use gputop_explain::ranks::Verdict;
use gputop_model::gpu::{Gpu, HealthState};
use gputop_model::units::{GpuUuid, Millis};

use super::emphasis::Emphasis;
use super::gpu_columns::{full_soon, notes};
use super::host_state::HostState;
use super::times::span_text;
use super::why::stable_answer;

/// Time after which a GPU that does not answer is a danger. Shorter waits are common while the driver is busy.
const MIN_SILENCE: Millis = Millis(5_000);

/// Time until memory is full that leaves no time for anything else.
const IMMINENT: Millis = Millis(60_000);

#[derive(Debug, Clone, PartialEq)]
pub struct Danger {
    /// The GPU, unless the danger is that of a job.
    pub gpu: Option<GpuUuid>,
    /// A sentence without a period.
    pub text: String,
    /// The rest of the sentence, which is left out beside a second danger.
    pub detail: String,
    pub emphasis: Emphasis,
    /// True unless there is time to look at an incident first.
    pub is_imminent: bool,
}

/// Returns the dangers in the frame on the screen, most urgent first: lost GPUs, those that do not answer, ranks that hold
/// up their job, GPUs whose memory is full soon, programs whose slowness a person can end, and GPUs with another problem.
pub fn dangers(host: &HostState) -> Vec<Danger> {
    let gpus = &host.frame.gpus;
    let failed = |gpu: &Gpu, text: Option<String>| {
        let (gpu, text, emphasis) = (Some(gpu.uuid.clone()), text?, Emphasis::Bad);
        Some(Danger { gpu, text, detail: String::new(), emphasis, is_imminent: true })
    };
    let lost = gpus.iter().filter_map(|gpu| failed(gpu, lost(gpu, host)));
    let silent = gpus.iter().filter_map(|gpu| failed(gpu, silent(gpu, host)));
    let mut full: Vec<_> = gpus.iter().filter_map(|gpu| full(gpu, host)).collect();
    full.sort_by_key(|(time, _)| *time);
    let full = full.into_iter().map(|(_, danger)| danger);
    lost.chain(silent)
        .chain(ranks(host))
        .chain(full)
        .chain(starved(host))
        .chain(troubled(host))
        .collect()
}

/// Returns the GPUs whose most urgent note is serious, such as heat or uncorrected errors.
fn troubled(host: &HostState) -> impl Iterator<Item = Danger> {
    let answers = |gpu: &&Gpu| !matches!(gpu.health.state, HealthState::Lost | HealthState::Silent);
    host.frame.gpus.iter().filter(answers).filter_map(|gpu| {
        let note = notes(gpu, &host.frame).into_iter().next()?;
        (note.emphasis == Emphasis::Bad).then(|| Danger {
            gpu: Some(gpu.uuid.clone()),
            text: format!("GPU {}: {}", gpu.index, note.text),
            detail: String::new(),
            emphasis: Emphasis::Bad,
            is_imminent: false,
        })
    })
}

/// Returns the ranks that hold up others. While the display is rewound, the jobs of that time are not known.
fn ranks(host: &HostState) -> Vec<Danger> {
    if host.is_rewound() {
        return Vec::new();
    }
    let danger = |verdict: &Verdict| Danger {
        gpu: None,
        text: verdict.to_string(),
        detail: String::new(),
        emphasis: Emphasis::Warn,
        is_imminent: true,
    };
    host.jobs.verdicts().map(danger).collect()
}

/// Returns the programs that are slow because of a CPU quota, heat, or workers on one core.
fn starved(host: &HostState) -> impl Iterator<Item = Danger> {
    host.frame.gpus.iter().filter_map(|gpu| {
        let (process, answer) = stable_answer(host, gpu)?;
        let sentence = answer.sentence.trim_end_matches('.');
        answer.cause.needs_person().then(|| Danger {
            gpu: Some(gpu.uuid.clone()),
            text: format!("GPU {}: PID {}: {sentence}", gpu.index, process.pid),
            detail: String::new(),
            emphasis: Emphasis::Warn,
            is_imminent: false,
        })
    })
}

fn since(gpu: &Gpu, host: &HostState) -> Millis {
    gpu.health.since.map_or(Millis(0), |since| host.frame.mono.since(since))
}

fn lost(gpu: &Gpu, host: &HostState) -> Option<String> {
    (gpu.health.state == HealthState::Lost).then(|| {
        let lost = match gpu.health.since {
            Some(since) => format!("was lost {} ago", span_text(host.frame.mono.since(since))),
            None => "is lost".to_owned(),
        };
        format!("GPU {} {lost}, and its programs fail", gpu.index)
    })
}

fn silent(gpu: &Gpu, host: &HostState) -> Option<String> {
    let time = since(gpu, host);
    (gpu.health.state == HealthState::Silent && time >= MIN_SILENCE)
        .then(|| format!("GPU {} has not answered for {}", gpu.index, span_text(time)))
}

/// Returns the time until the memory is full, if that is soon.
fn full(gpu: &Gpu, host: &HostState) -> Option<(Millis, Danger)> {
    let (time, fastest) = full_soon(&host.processes.all_rows, gpu)?;
    let text = format!("GPU {} full in ~{}: {}", gpu.index, span_text(time), fastest.program());
    let growth = fastest.growth_text()?;
    let growth = growth.trim_start_matches('+');
    let detail = format!(" {} grows by {growth} GiB/min", fastest.pid());
    let is_imminent = time < IMMINENT;
    let gpu = Some(gpu.uuid.clone());
    Some((time, Danger { gpu, text, detail, emphasis: Emphasis::Warn, is_imminent }))
}
