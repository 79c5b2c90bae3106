//! What the terms of a filter look at: one list, from which the help is made too.

use super::parse::{Compare, Comparison};
use crate::allocator::fits::stuck;
use crate::allocator::warnings::NoteKind;
use crate::model::process::RunState;
use crate::model::units::Bytes;
use crate::tui::rows::{Ended, ProcessRow};

#[derive(Debug)]
pub struct FieldDef {
    pub name: &'static str,
    /// One term that is understood.
    pub example: &'static str,
    /// A noun phrase for the help, with a period.
    pub help: &'static str,
    pub kind: Kind,
}

#[derive(Debug)]
pub enum Kind {
    Text {
        of: for<'r> fn(&'r ProcessRow) -> Option<&'r str>,
        how: How,
    },
    Number {
        of: fn(&ProcessRow) -> Option<f64>,
        unit: Unit,
    },
    State,
}

/// When a text is the one that was typed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum How {
    Begins,
    Contains,
    /// As [`Begins`](Self::Begins); `me` is the user at the keyboard.
    User,
    /// As [`Begins`](Self::Begins), also of the container's name and of its runtime's.
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
    /// What a number with this suffix is multiplied by.
    pub fn scale(self, suffix: &str) -> Option<f64> {
        const KIB: f64 = 1024.0;
        Some(match (self, suffix) {
            (Self::Size, "k" | "kb" | "kib") => KIB,
            (Self::Size, "m" | "mb" | "mib") => KIB * KIB,
            // The table's columns are in GiB.
            (Self::Size, "" | "g" | "gb" | "gib") => KIB * KIB * KIB,
            (Self::Size, "t" | "tb" | "tib") => KIB * KIB * KIB * KIB,
            (Self::Percent, "" | "%") | (Self::Count, "") | (Self::Seconds, "s") => 1.0,
            (Self::Seconds, "m") => 60.0,
            (Self::Seconds, "h") => 3_600.0,
            (Self::Seconds, "d") => 86_400.0,
            _ => return None,
        })
    }

    pub fn words(self) -> &'static str {
        match self {
            Self::Size => "size",
            Self::Percent => "percentage",
            Self::Seconds => "time",
            Self::Count => "number",
        }
    }
}

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
    /// A clause for the help, with a period.
    pub help: &'static str,
}

const fn state(name: &'static str, state: State, help: &'static str) -> StateDef {
    StateDef { name, state, help }
}

pub const STATES: &[StateDef] = &[
    state(
        "oom",
        State::Oom,
        "A request of its allocator failed, or it ended for want of the GPU's memory or the host's.",
    ),
    state("dead", State::Dead, "It has ended."),
    state(
        "unreadable",
        State::Unreadable,
        "Its allocator could not be read (! says why).",
    ),
    state(
        "warned",
        State::Warned,
        "A word of warning stands before its command.",
    ),
    state(
        "zombie",
        State::Zombie,
        "Ended, and not collected by its parent.",
    ),
    state(
        "blocked",
        State::Blocked,
        "In a system call that cannot be interrupted.",
    ),
    state("stopped", State::Stopped, "Held by a signal or a debugger."),
];

const fn text(
    name: &'static str,
    example: &'static str,
    help: &'static str,
    of: for<'r> fn(&'r ProcessRow) -> Option<&'r str>,
    how: How,
) -> FieldDef {
    let kind = Kind::Text { of, how };
    FieldDef {
        name,
        example,
        help,
        kind,
    }
}

const fn number(
    name: &'static str,
    example: &'static str,
    help: &'static str,
    unit: Unit,
    of: fn(&ProcessRow) -> Option<f64>,
) -> FieldDef {
    let kind = Kind::Number { of, unit };
    FieldDef {
        name,
        example,
        help,
        kind,
    }
}

pub const FIELDS: &[FieldDef] = &[
    text(
        "user",
        "user:me",
        "The beginning of the user's name; me is who runs gputop there.",
        |row| row.facts()?.user.value().map(String::as_str),
        How::User,
    ),
    number("gpu", "gpu:0", "Index of the GPU.", Unit::Count, |row| {
        (row.gpu_index() != u32::MAX).then(|| f64::from(row.gpu_index()))
    }),
    number("pid", "pid:418", "The process.", Unit::Count, |row| {
        Some(f64::from(row.pid().0))
    }),
    number(
        "rank",
        "rank:3",
        "Rank in a distributed job.",
        Unit::Count,
        |row| row.facts()?.rank.get().map(f64::from),
    ),
    text(
        "job",
        "job:81234",
        "The beginning of the batch system's job id.",
        |row| row.facts()?.job.value().map(String::as_str),
        How::Begins,
    ),
    text(
        "container",
        "container:train",
        "The beginning of the container's name or id, or what runs it: docker.",
        |row| row.facts()?.container.value().map(String::as_str),
        How::Container,
    ),
    text(
        "cmd",
        "cmd:train",
        "Part of the command line.",
        |row| row.facts()?.command.value().map(String::as_str),
        How::Contains,
    ),
    FieldDef {
        name: "state",
        example: "state:oom",
        help: "How the process is; the words follow.",
        kind: Kind::State,
    },
    number("vram", "vram>10g", "Device memory.", Unit::Size, |row| {
        row.vram().get().map(bytes)
    }),
    number("alloc", "alloc>10g", "Live tensors.", Unit::Size, |row| {
        row.allocated().map(bytes)
    }),
    number(
        "resv",
        "resv>10g",
        "What the allocator holds from the driver.",
        Unit::Size,
        |row| row.reserved().map(bytes),
    ),
    number(
        "idle",
        "idle>2g",
        "Cached, in no tensor.",
        Unit::Size,
        |row| row.idle().map(bytes),
    ),
    number(
        "stuck",
        "stuck>1g",
        "Idle beside live tensors.",
        Unit::Size,
        |row| stuck(&row.pool()?.stats).map(bytes),
    ),
    number(
        "fits",
        "fits<1g",
        "The largest request that would succeed now.",
        Unit::Size,
        |row| row.fits().map(bytes),
    ),
    number("rss", "rss>8g", "Host memory.", Unit::Size, |row| {
        row.live_fact(|f| &f.rss).get().map(bytes)
    }),
    number(
        "sm",
        "sm>50",
        "Share of the GPU's compute time.",
        Unit::Percent,
        |row| row.sm().get().map(|v| v.0),
    ),
    number(
        "cpu",
        "cpu>100",
        "CPU; 100 is one core.",
        Unit::Percent,
        |row| row.live_fact(|f| &f.cpu).get().map(|v| v.0),
    ),
    number(
        "age",
        "age>2h",
        "How long it has run.",
        Unit::Seconds,
        |row| row.shown_age().map(|age| whole(age.0 / 1_000)),
    ),
    number(
        "retry",
        "retry>0",
        "How often the allocator flushed its cache.",
        Unit::Count,
        |row| Some(whole(row.pool()?.stats.num_alloc_retries)),
    ),
    number(
        "oom",
        "oom>0",
        "How often a request failed.",
        Unit::Count,
        |row| Some(whole(row.pool()?.stats.num_ooms)),
    ),
];

fn bytes(size: Bytes) -> f64 {
    whole(size.0)
}

#[allow(clippy::cast_precision_loss)]
fn whole(value: u64) -> f64 {
    value as f64
}

/// True when the row's value is what the term asks for; a value that is not there never is.
pub fn accepts(field: &FieldDef, compare: &Compare, row: &ProcessRow, me: Option<u32>) -> bool {
    match (&field.kind, compare) {
        (Kind::State, Compare::States(states)) => states.iter().any(|state| is(row, *state)),
        (Kind::Text { of, how }, Compare::Texts(texts)) => {
            let value = of(row).map(str::to_lowercase);
            texts.iter().any(|text| match how {
                How::User if text == "me" => {
                    me.is_some() && row.facts().and_then(|facts| facts.uid) == me
                }
                How::Contains => value.as_ref().is_some_and(|value| value.contains(text)),
                How::Container
                    if row.facts().is_some_and(|facts| {
                        let words = facts.container_words().unwrap_or_default().to_lowercase();
                        words.split([' ', '/']).any(|word| word.starts_with(text))
                    }) =>
                {
                    true
                }
                How::Begins | How::User | How::Container => {
                    value.as_ref().is_some_and(|value| value.starts_with(text))
                }
            })
        }
        (Kind::Number { of, .. }, Compare::Numbers(numbers)) => {
            // Counts are whole numbers far below where a float loses one.
            of(row).is_some_and(|value| numbers.iter().any(|n| (n - value).abs() < 0.5))
        }
        (Kind::Number { of, .. }, Compare::Bound(order, limit)) => {
            of(row).is_some_and(|value| match order {
                Comparison::Above => value > *limit,
                Comparison::Below => value < *limit,
                Comparison::AtLeast => value >= *limit,
                Comparison::AtMost => value <= *limit,
            })
        }
        _ => false,
    }
}

fn is(row: &ProcessRow, state: State) -> bool {
    let runs = |wanted| row.ended().is_none() && row.run_state() == wanted;
    match state {
        State::Oom => {
            let died = |ended: &Ended| ended.ran_out || ended.exit.oom.killed.get() == Some(true);
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
