//! The fields of filter terms. The filter help is generated from this list.

use gputop_allocator::fits::fragmented;
use gputop_allocator::warnings::NoteKind;
use gputop_model::process::RunState;
use gputop_model::units::Bytes;

use crate::dashboard::exited::ExitedProcess;
use crate::dashboard::rows::ProcessRow;

/// Definition of a filter field.
#[derive(Debug)]
pub struct FieldDef {
    pub name: &'static str,
    /// Example of a valid filter term.
    pub example: &'static str,
    /// Field description for the help: a noun phrase with a period.
    pub help: &'static str,
    pub kind: Kind,
}

/// Type of a filter field, with an accessor for its value.
#[derive(Debug)]
pub enum Kind {
    Text { of: for<'r> fn(&'r ProcessRow) -> Option<&'r str>, matching: Matching },
    Number { of: fn(&ProcessRow) -> Option<f64>, unit: Unit },
    State,
}

/// Comparison with a field's value.
#[derive(Debug, Clone, PartialEq)]
pub enum Compare {
    /// For text fields: the value must match one of these strings.
    Texts(Vec<String>),
    States(Vec<State>),
    Numbers(Vec<f64>),
    Bound(Comparator, f64),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Comparator {
    Above,
    Below,
    AtLeast,
    AtMost,
}

/// How the typed text is compared with a field's value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Matching {
    Prefix,
    Contains,
    /// Like [`Prefix`](Self::Prefix), but `me` stands for the current user.
    User,
    /// Like [`Prefix`](Self::Prefix), but also matches the name and runtime of the container.
    Container,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    Size,
    Percent,
    Seconds,
    Count,
}

impl Unit {
    /// Returns the factor for a unit suffix, or `None` if the suffix is unknown.
    pub fn scale(self, suffix: &str) -> Option<f64> {
        const KIB: f64 = 1024.0;
        Some(match (self, suffix) {
            (Self::Size, "k" | "kb" | "kib") => KIB,
            (Self::Size, "m" | "mb" | "mib") => KIB * KIB,
            // Interpret sizes without a suffix as GiB, as in the table.
            (Self::Size, "" | "g" | "gb" | "gib") => KIB * KIB * KIB,
            (Self::Size, "t" | "tb" | "tib") => KIB * KIB * KIB * KIB,
            (Self::Percent, "" | "%") | (Self::Count, "") | (Self::Seconds, "s") => 1.0,
            (Self::Seconds, "m") => 60.0,
            (Self::Seconds, "h") => 3_600.0,
            (Self::Seconds, "d") => 86_400.0,
            _ => return None,
        })
    }

    pub fn description(self) -> &'static str {
        match self {
            Self::Size => "size",
            Self::Percent => "percentage",
            Self::Seconds => "time",
            Self::Count => "number",
        }
    }
}

/// A process state for use in filters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    Oom,
    Dead,
    Unreadable,
    Warned,
    Zombie,
    Blocked,
    Stopped,
}

#[derive(Debug)]
pub struct StateDef {
    pub name: &'static str,
    pub state: State,
    /// State description for the help, with a period.
    pub help: &'static str,
}

const fn state(name: &'static str, state: State, help: &'static str) -> StateDef {
    StateDef { name, state, help }
}

pub const STATES: &[StateDef] = &[
    state(
        "oom",
        State::Oom,
        "A memory request by the process failed, or the process was killed because the host ran out of memory.",
    ),
    state("dead", State::Dead, "The process has exited."),
    state(
        "unreadable",
        State::Unreadable,
        "The allocator is not readable. Press ! for the reasons.",
    ),
    state("warned", State::Warned, "A warning is shown before the command."),
    state("zombie", State::Zombie, "The process has exited, but its parent has not reaped it yet."),
    state("blocked", State::Blocked, "The process is in an uninterruptible system call."),
    state("stopped", State::Stopped, "The process is stopped by a signal or a debugger."),
];

const fn text(
    name: &'static str,
    example: &'static str,
    help: &'static str,
    of: for<'r> fn(&'r ProcessRow) -> Option<&'r str>,
    matching: Matching,
) -> FieldDef {
    let kind = Kind::Text { of, matching };
    FieldDef { name, example, help, kind }
}

const fn number(
    name: &'static str,
    example: &'static str,
    help: &'static str,
    unit: Unit,
    of: fn(&ProcessRow) -> Option<f64>,
) -> FieldDef {
    let kind = Kind::Number { of, unit };
    FieldDef { name, example, help, kind }
}

pub const FIELDS: &[FieldDef] = &[
    text(
        "user",
        "user:me",
        "Prefix of the user name; me is the user running gputop on that host.",
        |row| row.facts()?.user.value().map(String::as_str),
        Matching::User,
    ),
    number("gpu", "gpu:0", "Index of the GPU.", Unit::Count, |row| {
        (row.gpu_index() != u32::MAX).then(|| f64::from(row.gpu_index()))
    }),
    number("pid", "pid:418", "Process ID.", Unit::Count, |row| Some(f64::from(row.pid().0))),
    number("rank", "rank:3", "Rank in a distributed job.", Unit::Count, |row| {
        row.rank().get().map(f64::from)
    }),
    text(
        "job",
        "job:81234",
        "Prefix of the batch job ID.",
        |row| row.facts()?.job.value().map(String::as_str),
        Matching::Prefix,
    ),
    text(
        "container",
        "container:train",
        "Prefix of the container's name, ID or runtime, such as docker.",
        |row| row.facts()?.container.value().map(String::as_str),
        Matching::Container,
    ),
    text(
        "cmd",
        "cmd:train",
        "Part of the command line.",
        |row| row.facts()?.command.value().map(String::as_str),
        Matching::Contains,
    ),
    FieldDef {
        name: "state",
        example: "state:oom",
        help: "State of the process; see below.",
        kind: Kind::State,
    },
    number("vram", "vram>10g", "Device memory.", Unit::Size, |row| row.vram().get().map(bytes)),
    number("alloc", "alloc>10g", "Memory in live tensors.", Unit::Size, |row| {
        row.allocated().map(bytes)
    }),
    number(
        "resv",
        "resv>10g",
        "Memory that the allocator has reserved from the driver.",
        Unit::Size,
        |row| row.reserved().map(bytes),
    ),
    number(
        "cached",
        "cached>2g",
        "Memory cached by the allocator but not in use by tensors.",
        Unit::Size,
        |row| row.cached().map(bytes),
    ),
    number(
        "fragmented",
        "fragmented>1g",
        "Cached memory in segments with live tensors.",
        Unit::Size,
        |row| fragmented(&row.pool()?.stats).map(bytes),
    ),
    number("fits", "fits<1g", "Largest request that would succeed now.", Unit::Size, |row| {
        row.fits().map(bytes)
    }),
    number("rss", "rss>8g", "Host memory.", Unit::Size, |row| {
        row.live_fact(|f| &f.rss).get().map(bytes)
    }),
    number("sm", "sm>50", "Share of the GPU's compute time.", Unit::Percent, |row| {
        row.sm().get().map(|v| v.0)
    }),
    number("cpu", "cpu>100", "CPU usage; 100 is one core.", Unit::Percent, |row| {
        row.live_fact(|f| &f.cpu).get().map(|v| v.0)
    }),
    number("age", "age>2h", "Run time.", Unit::Seconds, |row| {
        row.shown_age().map(|age| whole(age.0 / 1_000))
    }),
    number(
        "retry",
        "retry>0",
        "Number of times the allocator flushed its cache.",
        Unit::Count,
        |row| Some(whole(row.pool()?.stats.num_alloc_retries)),
    ),
    number("oom", "oom>0", "Number of failed requests.", Unit::Count, |row| {
        Some(whole(row.pool()?.stats.num_ooms))
    }),
];

fn bytes(size: Bytes) -> f64 {
    whole(size.0)
}

fn whole(value: u64) -> f64 {
    value as f64
}

/// Returns true if a row matches a filter term. A missing value never matches.
pub fn accepts(field: &FieldDef, compare: &Compare, row: &ProcessRow, me: Option<u32>) -> bool {
    match (&field.kind, compare) {
        (Kind::State, Compare::States(states)) => states.iter().any(|state| is(row, *state)),
        (Kind::Text { of, matching }, Compare::Texts(texts)) => {
            let value = of(row).map(str::to_lowercase);
            texts.iter().any(|text| match matching {
                Matching::User if text == "me" => {
                    me.is_some() && row.facts().and_then(|facts| facts.uid) == me
                }
                Matching::Contains => value.as_ref().is_some_and(|value| value.contains(text)),
                Matching::Container
                    if row.facts().is_some_and(|facts| {
                        let words = facts.container_text().unwrap_or_default().to_lowercase();
                        words.split([' ', '/']).any(|word| word.starts_with(text))
                    }) =>
                {
                    true
                }
                Matching::Prefix | Matching::User | Matching::Container => {
                    value.as_ref().is_some_and(|value| value.starts_with(text))
                }
            })
        }
        (Kind::Number { of, .. }, Compare::Numbers(numbers)) => {
            // Counts are integers, which a float represents exactly, so this comparison is exact.
            of(row).is_some_and(|value| numbers.iter().any(|n| (n - value).abs() < 0.5))
        }
        (Kind::Number { of, .. }, Compare::Bound(order, limit)) => {
            of(row).is_some_and(|value| match order {
                Comparator::Above => value > *limit,
                Comparator::Below => value < *limit,
                Comparator::AtLeast => value >= *limit,
                Comparator::AtMost => value <= *limit,
            })
        }
        _ => false,
    }
}

fn is(row: &ProcessRow, state: State) -> bool {
    let runs = |wanted| row.ended().is_none() && row.run_state() == wanted;
    match state {
        State::Oom => {
            let died = |ended: &ExitedProcess| {
                ended.is_gpu_oom || ended.exit.oom.killed.get() == Some(true)
            };
            row.ended().is_some_and(died)
                || row.warning() == Some(NoteKind::OomCaught)
                || row.pool().is_some_and(|pool| pool.stats.num_ooms > 0)
        }
        State::Dead => row.ended().is_some(),
        State::Unreadable => row.is_unreadable(),
        State::Warned => row.warning().is_some(),
        State::Zombie => runs(RunState::Zombie),
        State::Blocked => runs(RunState::Blocked),
        State::Stopped => runs(RunState::Stopped),
    }
}
