//! Builds frames from the output of the `nvidia-smi` script.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use gputop_model::frame::SCHEMA;
use gputop_model::text::visible;
use gputop_model::{
    ContextKind, Driver, Frame, Gpu, Health, HealthState, Hello, Millis, Missing, Mono, Pid,
    PidNamespace, Pools, ProcessKey, ProcessList, Reading, Reason, Unread,
};

use super::cell::SmiCell;
use super::facts::Facts;
use super::fields::{Card, card, field_names};
use super::host::HostFigures;
use super::instances::{Instances, instances};
use super::processes::{CpuShares, ProcessContext};
use super::readings::{Clocks, Round, SmiDetails};
use super::usage::Usage;

/// Maximum number of graphics processes to request data for.
const MAX_PIDS: usize = 256;

/// Data received from a remote host so far.
#[derive(Default)]
pub(super) struct View {
    unavailable: Missing,
    facts: Facts,
    frame: Frame,
    /// Time of the last round on the remote host's clock.
    read: Option<Mono>,
    host_figures: HostFigures,
    cpu_shares: CpuShares,
    usage: Usage,
    instances: Instances,
}

/// Optional parts of a request to the remote script.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct OptionalQueries {
    /// True to request the MIG instances.
    pub instances: bool,
    /// Processes missing from the list of compute processes.
    pub pids: BTreeSet<Pid>,
}

impl View {
    pub(super) fn new(unavailable: Missing) -> Self {
        Self { unavailable, ..Self::default() }
    }

    pub(super) fn hello(&mut self, facts: Facts) -> Hello {
        let word = |word: &Option<String>| word.clone().unwrap_or_default();
        let hello = Hello {
            schema: SCHEMA,
            reduced: true,
            host: word(&facts.host),
            boot_id: word(&facts.boot_id),
            kernel: Reading::or_missing(
                facts.kernel.clone(),
                Reason::Unknown,
                "`uname -r` on that host printed nothing",
            ),
            namespace: facts.namespace,
            namespace_id: Reading::or_missing(
                facts.namespace_id,
                Reason::Unknown,
                "cannot read /proc/self/ns/pid on that host",
            ),
            ticks_per_second: facts.ticks_per_second.unwrap_or_default(),
            uid: facts.uid,
            ..Hello::default()
        };
        self.facts = facts;
        hello
    }

    pub(super) fn frame(&mut self, round: &Round, interval: Millis) -> Frame {
        let mono = round.clocks.mono;
        let cards: Vec<Card> = round.gpus.iter().filter_map(|line| self.card(line)).collect();
        let driver = self.driver(&cards, round);
        let mut gpus: Vec<Gpu> = cards.into_iter().map(|card| self.gpu(card)).collect();
        let known = ProcessContext {
            facts: &self.facts,
            usage: &self.usage,
            unavailable: &self.unavailable,
        };
        let processes = self.cpu_shares.list(&mut gpus, round, known);
        for gpu in &mut gpus {
            (gpu.at, gpu.processes_at) = (mono, Some(mono));
        }
        self.read = Some(mono);
        self.frame = Frame {
            seq: self.frame.seq + 1,
            time: round.clocks.time,
            mono,
            interval,
            driver: Some(driver),
            host: Some(self.host_figures.read(&self.facts, round)),
            pools: Some(self.no_pools(&gpus, mono)),
            ranks: Arc::default(),
            processes: Some(ProcessList { at: mono, list: Arc::new(processes) }),
            gpus,
        };
        self.frame.clone()
    }

    /// Stores the result of a detail query for all later frames.
    pub(super) fn take(&mut self, details: &SmiDetails) {
        self.usage = Usage::read(&details.usage, self.read);
        self.instances = instances(&details.devices, &details.instances);
    }

    pub(super) fn wants(&self) -> OptionalQueries {
        let are_ours = self.facts.namespace == PidNamespace::Host;
        let pids = self.usage.graphics_pids().filter(|_| are_ours);
        OptionalQueries {
            instances: self.frame.gpus.iter().any(|gpu| gpu.mig_enabled.get() == Some(true)),
            pids: pids.take(MAX_PIDS).collect(),
        }
    }

    /// Returns a frame with the last known data while `nvidia-smi` does not respond.
    pub(super) fn silent(&mut self, clocks: Clocks, since: Duration, interval: Millis) -> Frame {
        let frame = &mut self.frame;
        (frame.seq, frame.time, frame.mono) = (frame.seq + 1, clocks.time, clocks.mono);
        frame.interval = interval;
        let detail = format!("nvidia-smi has not responded for {} s", since.as_secs());
        for gpu in &mut frame.gpus {
            gpu.health = Health {
                state: HealthState::Silent,
                since: Some(Mono(clocks.mono.0.saturating_sub(Millis::from(since).0))),
                detail: Some(detail.clone()),
            };
        }
        if frame.gpus.is_empty() {
            frame.driver = Some(Driver {
                gpus: Reading::missing(Reason::NotRead, detail),
                ..Driver::default()
            });
        }
        frame.clone()
    }

    /// Parses a GPU line. Returns `None` for other lines, such as warnings or truncated lines.
    fn card(&self, line: &[u8]) -> Option<Card> {
        let line = std::str::from_utf8(line).ok()?;
        let is_known = |names: &[&'static str]| self.facts.name_of(names).is_some();
        let asked = field_names().filter(|names| is_known(names)).count();
        let cells: Vec<&str> = line.split(", ").collect();
        if cells.len() != asked {
            return None;
        }
        let mut cells = cells.into_iter();
        let next = |names: &[&'static str]| {
            let text = is_known(names).then(|| cells.next()).flatten();
            text.map_or_else(SmiCell::unknown, SmiCell::of)
        };
        let card = card(next, &self.unavailable);
        (!card.gpu.uuid.0.is_empty()).then_some(card)
    }

    fn gpu(&self, card: Card) -> Gpu {
        let gpu = card.gpu;
        let instances = self.instances.get(&gpu.index);
        let instances = instances.filter(|_| gpu.mig_enabled.get() == Some(true));
        Gpu {
            health: Health { state: HealthState::Answering, ..Health::default() },
            memory: gpu.memory.checked(),
            mig: instances.cloned().unwrap_or_default(),
            ..gpu
        }
    }

    fn driver(&self, cards: &[Card], round: &Round) -> Driver {
        let count = u32::try_from(cards.len()).unwrap_or(u32::MAX);
        Driver {
            version: cards.first().map_or_else(Reading::default, |card| card.driver.clone()),
            cuda: Reading::or_missing(
                self.facts.cuda.clone(),
                Reason::Unknown,
                "nvidia-smi on that host reports no CUDA version",
            ),
            gpus: match count {
                0 => Reading::Missing(no_gpus(round)),
                count => count.into(),
            },
        }
    }

    /// Returns an unread pool for each compute process, because gputop cannot read allocators through `nvidia-smi`.
    /// Graphics-only processes have no allocator.
    fn no_pools(&self, gpus: &[Gpu], mono: Mono) -> Pools {
        let on_gpus = gpus.iter().flat_map(|gpu| gpu.processes.value());
        let computing = on_gpus.flatten().filter(|holder| holder.kind != ContextKind::Graphics);
        let keys: BTreeSet<ProcessKey> = computing.filter_map(|holder| holder.process).collect();
        let unread = keys.into_iter().map(|process| Unread {
            process,
            why: self.unavailable.clone(),
            ..Unread::default()
        });
        Pools { at: mono, unread: Arc::new(unread.collect()), ..Pools::default() }
    }
}

/// Returns the reason why no GPU was found, including the output of `nvidia-smi` if there is any.
fn no_gpus(round: &Round) -> Missing {
    let output = round.gpus.iter().map(|line| visible(line.trim_ascii(), 160));
    let output = output.into_iter().find(|words| !words.is_empty());
    let words = match (output, round.gpus_exit) {
        (Some(words), _) => format!("nvidia-smi reports: {}", words.trim_end_matches('.')),
        (None, Some(0)) => "nvidia-smi lists no GPU".to_owned(),
        (None, Some(code)) => format!("nvidia-smi exited with code {code}"),
        (None, None) => "nvidia-smi printed nothing".to_owned(),
    };
    Missing::new(Reason::Unknown, format!("{words}."))
}

#[cfg(test)]
mod tests;
