//! The answer, and its causes.

use gputop_model::gpu::Throttle;

/// Why a GPU is idle, or a program slow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cause {
    /// Heat or the power supply slows the GPU down.
    SlowedDown(Throttle),
    Busy,
    NotEnoughSamples,
    CpuQuota,
    GlobalLock,
    NoFreeCore,
    Compiles,
    Starts,
    NothingRuns,
    Checkpoint,
    DataLoader(LoaderLimit),
    LoadsInline,
    Disk,
    Evaluation,
    Logging,
    /// Waits for a program that it started.
    ChildProcess,
    OtherRank,
    CopiesToGpu,
    WaitsForGpu,
    SmallKernels,
    FewSms,
    PythonOrLaunches,
    NoSingleCause,
}

/// What limits the workers of a data loader.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LoaderLimit {
    /// The workers use their cores fully: more of them help.
    Workers,
    /// The workers wait for cores.
    Cores,
    /// All workers may run on one core only.
    OneCore,
    /// The workers wait for storage, the network or a lock.
    Storage,
    /// The processes of the workers are not visible.
    Unknown,
}

impl Cause {
    /// Returns the cause as a word. The words are part of the JSON contract.
    pub fn id(self) -> &'static str {
        match self {
            Self::SlowedDown(_) => "slowed_down",
            Self::Busy => "busy",
            Self::NotEnoughSamples => "not_enough_samples",
            Self::CpuQuota => "cpu_quota",
            Self::GlobalLock => "global_lock",
            Self::NoFreeCore => "no_free_core",
            Self::Compiles => "compiles",
            Self::Starts => "starts",
            Self::NothingRuns => "nothing_runs",
            Self::Checkpoint => "checkpoint",
            Self::DataLoader(_) => "data_loader",
            Self::LoadsInline => "loads_inline",
            Self::Disk => "disk",
            Self::Evaluation => "evaluation",
            Self::Logging => "logging",
            Self::ChildProcess => "child_process",
            Self::OtherRank => "other_rank",
            Self::CopiesToGpu => "copies_to_gpu",
            Self::WaitsForGpu => "waits_for_gpu",
            Self::SmallKernels => "small_kernels",
            Self::FewSms => "few_sms",
            Self::PythonOrLaunches => "python_or_launches",
            Self::NoSingleCause => "no_single_cause",
        }
    }

    /// Returns true if a person has to change something outside the program.
    pub fn needs_person(self) -> bool {
        matches!(
            self,
            Self::SlowedDown(_) | Self::CpuQuota | Self::DataLoader(LoaderLimit::OneCore)
        )
    }
}

#[derive(Debug, Clone, PartialEq)]
pub struct Answer {
    pub cause: Cause,
    /// One sentence, with the share of the window.
    pub sentence: String,
    /// The figures behind the sentence, without a period.
    pub evidence: Vec<String>,
    /// What to try, a sentence.
    pub advice: Option<String>,
    /// What else slows the program down, and what could not be read: sentences.
    pub also: Vec<String>,
    /// The cause in at most 40 characters, for a column.
    pub note: String,
}

impl Answer {
    /// Returns the sentence with its evidence and advice.
    pub fn text(&self) -> String {
        let mut text = self.sentence.clone();
        if !self.evidence.is_empty() {
            text += &format!(" {}.", capitalized(&self.evidence.join("; ")));
        }
        if let Some(advice) = &self.advice {
            text += &format!(" {advice}");
        }
        text
    }
}

fn capitalized(text: &str) -> String {
    let mut chars = text.chars();
    chars.next().map_or(String::new(), |first| first.to_uppercase().chain(chars).collect())
}
