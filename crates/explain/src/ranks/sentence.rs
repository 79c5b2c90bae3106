//! Sentences about verdicts: `rank 3 holds up 7 ranks for 41 s: it waits for its data loader (train.py:88)`.

use std::fmt::{self, Display, Formatter};

use gputop_model::process_group::Work;
use gputop_model::units::Millis;

use super::constant_offset::ConstantOffset;
use super::lateness::SlowRank;
use super::observation::RankExit;
use super::stack_place::StackPlace;
use super::verdict::{Camp, Cause, Verdict};

/// Maximum number of ranks in a list. Of more, the first two are named.
const MAX_RANKS: usize = 3;

/// Formats ranks as `rank 3`, `ranks 1 and 5`, `ranks 1, 5 and 6 more`.
pub struct RankList<'a>(pub &'a [u32]);

impl Display for RankList<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self.0 {
            [] => f.write_str("no rank"),
            [rank] => write!(f, "rank {rank}"),
            [first, second] => write!(f, "ranks {first} and {second}"),
            [first, second, third] if self.0.len() <= MAX_RANKS => {
                write!(f, "ranks {first}, {second} and {third}")
            }
            [first, second, rest @ ..] => {
                write!(f, "ranks {first}, {second} and {} more", rest.len())
            }
        }
    }
}

impl Verdict {
    fn is_one(&self) -> bool {
        self.culprits.len() == 1
    }

    fn choose(&self, one: &'static str, many: &'static str) -> &'static str {
        if self.is_one() { one } else { many }
    }

    fn it(&self) -> &'static str {
        self.choose("it", "they")
    }

    fn age(&self) -> Age {
        Age(self.waited)
    }
}

impl Display for Verdict {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let (work, group, age) = (Name(&self.work), &self.group, self.age());
        let it = self.it();
        match &self.cause {
            Cause::WaitsAlone { others } => {
                let (who, waits) =
                    (RankList(&self.culprits), self.choose("waits alone", "wait alone"));
                write!(f, "{who} {waits} for {age} at {work} in group {group}: ")?;
                write!(f, "{} not come", Count(*others, "has", "have"))
            }
            Cause::Behind => {
                self.holds_up(f)?;
                match &self.place {
                    Some(place) => write!(f, "{it} {}", self.doing(place)),
                    None => self.not_come(f),
                }
            }
            Cause::PointToPoint if self.culprits.is_empty() => {
                self.ranks_wait(f)?;
                write!(f, " for {age} in point-to-point operations of group {group}")
            }
            Cause::PointToPoint => {
                self.holds_up(f)?;
                match &self.place {
                    Some(place) => write!(f, "{it} {}", self.doing(place)),
                    None => write!(f, "the only one not waiting in group {group}"),
                }
            }
            Cause::OtherOperation { theirs, usual } => self.other_operation(f, theirs, usual),
            Cause::OtherOrder { earlier, later } if self.culprits.is_empty() => {
                self.ranks_wait(f)?;
                write!(
                    f,
                    " for {age}: they called groups {earlier} and {later} in different orders"
                )
            }
            Cause::OtherOrder { earlier, later } => {
                self.holds_up(f)?;
                write!(f, "{it} called group {earlier} before {later}, others after it")
            }
            Cause::Deadlock { camps } => deadlock(f, camps, age),
            Cause::InsideNccl => {
                self.holds_up(f)?;
                write!(
                    f,
                    "{it} {} inside NCCL for {work} in group {group}",
                    self.choose("is", "are")
                )
            }
            Cause::NoProcess(exit) => {
                self.wait_for(f)?;
                write!(f, "{it} {}", ExitText(exit, self.is_one()))
            }
            Cause::Stopped => {
                self.holds_up(f)?;
                write!(f, "{it} {} stopped (state T)", self.choose("is", "are"))
            }
            Cause::NotReadYet => {
                self.wait_for(f)?;
                write!(f, "{it} {} not read yet", self.choose("is", "are"))
            }
            Cause::NotReadable(missing) => {
                self.wait_for(f)?;
                write!(f, "{it} cannot be read ({})", Bounded(&missing.to_string()))
            }
            Cause::NotOnHost { hosts } => {
                self.ranks_wait(f)?;
                write!(f, " for {age} at {work} in group {group}: {} ", RankList(&self.culprits))?;
                let place = if *hosts == 1 { "this host" } else { "these hosts" };
                write!(f, "{} no process on {place}", self.choose("has", "have"))
            }
            Cause::NotCompleted => {
                self.ranks_wait(f)?;
                write!(f, " for {age} for {work}: ")?;
                f.write_str("all have called it, so suspect GPU, link or driver")
            }
        }
    }
}

impl Verdict {
    /// Writes the start of a sentence about the culprits: `rank 3 holds up 7 ranks for 41 s: `.
    fn holds_up(&self, f: &mut Formatter<'_>) -> fmt::Result {
        if self.culprits.is_empty() {
            self.ranks_wait(f)?;
            return write!(f, " for {}: ", self.age());
        }
        let (who, holds) = (RankList(&self.culprits), self.choose("holds up", "hold up"));
        write!(f, "{who}")?;
        if let Some(host) = &self.culprit_host {
            write!(f, " on {}", Bounded(host))?;
        }
        write!(f, " {holds} {} for {}: ", Ranks(&self.waiting), self.age())
    }

    fn wait_for(&self, f: &mut Formatter<'_>) -> fmt::Result {
        self.ranks_wait(f)?;
        write!(f, " for {} for {}: ", RankList(&self.culprits), self.age())
    }

    fn ranks_wait(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let wait = if self.waiting.len() == 1 { "waits" } else { "wait" };
        write!(f, "{} {wait}", Ranks(&self.waiting))
    }

    fn not_come(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let (it, has) = (self.it(), self.choose("has", "have"));
        write!(f, "{it} {has} not come to {} in group {}", Name(&self.work), self.group)
    }

    fn doing(&self, place: &StackPlace) -> String {
        match place.activity {
            Some(activity) if self.is_one() => format!("{} ({place})", activity.singular),
            Some(activity) => activity.plural.clone(),
            None => format!("{} in {} ({place})", self.choose("is", "are"), place.function),
        }
    }

    fn other_operation(&self, f: &mut Formatter<'_>, theirs: &Work, usual: &Work) -> fmt::Result {
        let size = |work: &Work| work.elements.map_or(0, |(input, _)| input);
        let who = if self.culprits.is_empty() { "some" } else { self.it() };
        self.holds_up(f)?;
        write!(f, "{who} called {}", Name(theirs))?;
        if theirs.operation == usual.operation {
            write!(f, " with {} elements, others with {}", size(theirs), size(usual))
        } else {
            write!(f, ", others {}", usual.operation_name())
        }
    }
}

fn deadlock(f: &mut Formatter<'_>, camps: &[Camp], age: Age) -> fmt::Result {
    let mut camps: Vec<_> = camps.iter().collect();
    camps.sort_by_key(|camp| camp.ranks.len());
    let [first, second, rest @ ..] = camps.as_slice() else {
        return write!(f, "ranks wait for each other for {age}");
    };
    write!(f, "{} (group {})", RankList(&first.ranks), first.group)?;
    write!(f, " and {} (group {})", RankList(&second.ranks), second.group)?;
    if !rest.is_empty() {
        write!(f, " and ranks in {} more groups", rest.len())?;
    }
    write!(f, " wait for each other for {age}")
}

/// Formats a warning: `rank 1 stays 1 collective behind in group dp: it may have skipped calls`.
impl Display for ConstantOffset {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let (n, group) = (self.offset.unsigned_abs(), &self.group);
        let plural = if n == 1 { "" } else { "s" };
        let is_behind = self.offset < 0;
        let place = if is_behind { "behind" } else { "ahead" };
        let (stay, it) = if self.ranks.len() == 1 { ("stays", "it") } else { ("stay", "they") };
        write!(f, "{} {stay} {n} collective{plural} {place}", RankList(&self.ranks))?;
        let reason = if is_behind { "skipped" } else { "repeated" };
        write!(f, " in group {group}: {it} may have {reason} calls")
    }
}

/// Formats a slow rank: `rank 1 comes last to 96 % of the collectives, 52 ms after the first rank`.
impl Display for SlowRank {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Self { rank, share, lateness } = self;
        write!(f, "rank {rank} comes last to {share} % of the collectives, ")?;
        write!(f, "{} ms after the first rank", lateness.0)
    }
}

/// Formats ranks by their number if there are several: `7 ranks`, `rank 3`.
struct Ranks<'a>(&'a [u32]);

impl Display for Ranks<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self.0 {
            [rank] => write!(f, "rank {rank}"),
            ranks => write!(f, "{} ranks", ranks.len()),
        }
    }
}

/// Formats a number of ranks and a verb: `7 ranks have`.
struct Count(usize, &'static str, &'static str);

impl Display for Count {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self(1, one, _) => write!(f, "1 rank {one}"),
            Self(n, _, many) => write!(f, "{n} ranks {many}"),
        }
    }
}

/// Formats a collective as `ALLREDUCE #30`.
struct Name<'a>(&'a Work);

impl Display for Name<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self.0.operation_name() {
            "" => write!(f, "collective #{}", self.0.seq),
            operation => write!(f, "{operation} #{}", self.0.seq),
        }
    }
}

/// Formats the predicate of an exited rank: `exited with 1 (OUT OF MEMORY)`.
struct ExitText<'a>(&'a RankExit, bool);

impl Display for ExitText<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let none = if self.1 { "has no process" } else { "have no process" };
        f.write_str(self.0.description.as_deref().unwrap_or(none))?;
        match &self.0.incident {
            Some(incident) => write!(f, " ({incident})"),
            None => Ok(()),
        }
    }
}

struct Bounded<'a>(&'a str);

impl Display for Bounded<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(&gputop_model::text::visible(self.0.as_bytes(), 60))
    }
}

/// Formats a time as `41 s`, `3 min` or `2 h 5 min`.
struct Age(Millis);

impl Display for Age {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match (self.0.0 / 1000, self.0.0 / 60_000) {
            (seconds, 0..2) => write!(f, "{seconds} s"),
            (_, minutes @ 2..60) => write!(f, "{minutes} min"),
            (_, minutes) => write!(f, "{} h {} min", minutes / 60, minutes % 60),
        }
    }
}
