//! A case: the observations of one failure in one or more processes, and the incident that gputop has derived from them
//! so far.

use std::cell::OnceCell;
use std::collections::{BTreeMap, HashMap};
use std::fmt::Write as _;
use std::sync::Arc;

use gputop_model::event::{
    Event, Exit, GpuAtOom, HookEvent, LogExcerpt, Observation, OomEvidence, Xid,
};
use gputop_model::gpu::{Gpu, HealthState};
use gputop_model::holders::summary::HolderSummary;
use gputop_model::incident::{DetectedBy, Incident, Severity};
use gputop_model::incident_key::IncidentKey;
use gputop_model::incident_record::{Excerpt, Record};
use gputop_model::memory_size;
use gputop_model::pool::FailureMap;
use gputop_model::process::{ProcessKey, program_of};
use gputop_model::scene::Scene;
use gputop_model::stack::PythonStack;
use gputop_model::text::visible;
use gputop_model::trace_replay::TraceReplay;
use gputop_model::units::Millis;
use gputop_model::units::{Bytes, GpuUuid, Mono};

use super::figures::OomFigures;
use super::group::Group;
use super::process_info::ProcessInfo;
use super::stall::{self, Stall};
use super::windows::{OTHER_RANKS_TIMEOUT, REPEAT_WINDOW, SAME_FAILURE_WINDOW};
use super::{free_blocks, scene};
use crate::catalogue::Catalogue;
use crate::diagnose;
use crate::evidence::Measured;
use crate::fields::FieldMap;
use crate::hook_report::HookReport;
use crate::kernel_report::{self, KernelReport};
use crate::log::{LogFindings, LogReader, Sighting, TextSource};
use crate::predicted_fixes::add_predictions;
use crate::rerun::with_command;
use crate::traceback::TracebackFrame;

/// Adds the user's source code to the tracebacks of logs.
pub type SourceReader = fn(&mut [LogFindings]);

/// Maximum time to look for the process that caused an Xid. The driver's lines for one fault are milliseconds apart,
/// and the program prints its own messages later.
pub const OWNER_TIMEOUT: Millis = Millis(2_000);

/// Returns true if programs can cause this Xid, according to the table of Xids.
pub fn is_application_error(number: u64) -> bool {
    let known = Catalogue::embedded().tables.xids.iter().find(|xid| xid.codes.contains(&number));
    known.is_some_and(|xid| xid.side == "application")
}

const MAX_TEXT: usize = 256 << 10;
/// Maximum number of Xids in a case. A failing GPU can report thousands, and every new diagnosis of the case reads all
/// of them.
const MAX_XIDS: usize = 256;
/// Maximum memory of the findings that are kept with a text. A text with more is read again.
const MAX_FINDINGS_BYTES: usize = 1 << 20;
/// Maximum memory of the observations in one case. Later observations are not added.
const MAX_CASE_BYTES: usize = 12 << 20;
/// File and function names that occur in a stack while a library searches for the fastest algorithm that fits in
/// memory. Failed allocations are normal during this search.
const ALGORITHM_SEARCHES: &[(&str, &str)] =
    &[("conv.py", "_conv_forward"), ("", "autotune"), ("", "benchmark")];
/// Factor applied to the confidence if the only evidence is an increased OOM counter. The counter does not show which
/// exception PyTorch raised.
const CONFIDENCE_WITHOUT_TEXT: f64 = 0.8;

#[derive(Debug)]
pub struct LiveCase {
    key: IncidentKey,
    group: Group,
    last: Mono,
    members: BTreeMap<ProcessKey, CaseMember>,
    xids: Vec<(Option<ProcessKey>, Option<GpuUuid>, Xid)>,
    /// GPU that the driver has lost, if that is the failure.
    lost: Option<GpuUuid>,
    /// GPU that could not replace a defective memory row, if that is the failure.
    remap_failed: Option<GpuUuid>,
    /// The job's ranks that wait for each other, at the newest look.
    stall: Option<Stall>,
    scene: Arc<Scene>,
    /// Memory of the observations, without the scene.
    bytes: usize,
    findings_bytes: usize,
    scene_bytes: usize,
    /// Last published revision of the incident.
    published: Option<Record>,
    /// True if the severity last published already takes into account that the process survived.
    is_settled: bool,
    /// Number of later cases that repeat this one.
    repeats: u32,
    /// Key of the earlier case that this one repeats.
    repeat_of: Option<IncidentKey>,
}

#[derive(Clone, Copy)]
struct ProcessFacts<'a> {
    known: &'a HashMap<ProcessKey, ProcessInfo>,
    gpu_indices: &'a HashMap<ProcessKey, u32>,
    source_reader: Option<SourceReader>,
}

impl ProcessFacts<'_> {
    fn rank(self, key: ProcessKey) -> Option<u32> {
        self.known.get(&key)?.rank
    }

    /// Sets the GPU's index on the host, because a program's GPU 0 can be any GPU on the host.
    fn set_gpu_index(self, key: ProcessKey, found: &mut FieldMap) {
        if let Some(index) = self.gpu_indices.get(&key) {
            found.insert("gpu_index".into(), (*index).into());
        }
    }
}

/// Observations of one process in a case.
#[derive(Debug, Default)]
struct CaseMember {
    last: Mono,
    texts: Vec<ObservedText>,
    ooms: Option<(OomFigures, u64)>,
    measured: Measured,
    frames: Vec<TracebackFrame>,
    /// True if a library was searching for an algorithm when memory ran out.
    is_search: bool,
    /// The Python hook's report on the last failed allocation.
    hook_report: Option<HookReport>,
    /// Result of replaying the allocation trace with other settings.
    replayed: Option<TraceReplay>,
    /// Traceback of an uncaught exception, as reported by the hook.
    exception: Option<ObservedText>,
    exit: Option<Exit>,
}

/// A contiguous part of a process's log, or a traceback from the hook.
#[derive(Debug, Default)]
struct ObservedText {
    source: TextSource,
    file: String,
    /// Line number of the first line in the log, counted from 1, if known.
    first_line: Option<u64>,
    text: String,
    /// Number of unread bytes in the log before this text.
    skipped: Bytes,
    /// Processes that write to the log file. Empty if only one process writes to it.
    writers: Vec<ProcessKey>,
    /// Findings in the text, retained so that it is read only once.
    findings: OnceCell<LogFindings>,
}

impl LiveCase {
    pub fn new(key: IncidentKey, group: Group) -> Self {
        Self {
            last: key.first,
            scene: Arc::new(Scene { at: key.first, ..Scene::default() }),
            key,
            group,
            members: BTreeMap::new(),
            xids: Vec::new(),
            lost: None,
            remap_failed: None,
            stall: None,
            bytes: 0,
            findings_bytes: 0,
            scene_bytes: 0,
            published: None,
            is_settled: false,
            repeats: 0,
            repeat_of: None,
        }
    }

    /// Returns the approximate memory of the case in bytes. The published revision repeats the texts, and shares the
    /// scene.
    pub fn bytes(&self) -> usize {
        2 * self.bytes + self.findings_bytes + self.scene_bytes
    }

    pub fn measure(&mut self) {
        self.scene_bytes = memory_size::of(&*self.scene);
        let texts = self.members.values().flat_map(|m| m.texts.iter().chain(&m.exception));
        let findings = texts.filter_map(|text| text.findings.get());
        self.findings_bytes = findings.map(LogFindings::memory).sum();
    }

    pub fn group(&self) -> &Group {
        &self.group
    }

    pub fn last_at(&self) -> Mono {
        self.last
    }

    pub fn last_of(&self, process: ProcessKey) -> Mono {
        self.members.get(&process).map_or(Mono(0), |m| m.last)
    }

    pub fn processes(&self) -> impl Iterator<Item = ProcessKey> + '_ {
        self.members.keys().copied()
    }

    pub fn has(&self, process: ProcessKey) -> bool {
        self.members.contains_key(&process)
    }

    pub fn scene(&mut self) -> &mut Scene {
        Arc::make_mut(&mut self.scene)
    }

    /// Stores `failed` as the case's map unless a map is already stored, because the first map is nearest to the
    /// failure. Returns true if `failed` was stored.
    pub fn take_map(&mut self, failed: &FailureMap) -> bool {
        let is_first = self.scene.map.is_none();
        if is_first {
            self.scene().map = Some(scene::map(failed));
            if let Some(member) = self.members.get_mut(&failed.map.process) {
                member.take_map(failed);
            }
        }
        is_first
    }

    /// Stores a reading of the memory holders if the process ran out of memory and the case has no better reading.
    /// Returns true if the reading was stored.
    pub fn take_holders(&mut self, summary: &HolderSummary) -> bool {
        let Some(member) = self.members.get_mut(&summary.process).filter(|m| m.is_out_of_memory())
        else {
            return false;
        };
        let is_better = Arc::make_mut(&mut self.scene).take_holders(summary.clone());
        if is_better {
            let mut figures = summary.clone();
            figures.forget_names();
            member.measured.holders = Some(figures);
        }
        is_better
    }

    pub fn set_gpu_at_oom(&mut self, process: ProcessKey, gpu: &GpuAtOom) {
        if let Some(member) = self.members.get_mut(&process)
            && let Some((figures, _)) = &mut member.ooms
        {
            figures.update_gpu(process, gpu);
            member.measured.request_over = figures.request_over();
        }
    }

    pub fn has_oom_of(&self, process: ProcessKey) -> bool {
        self.members.get(&process).is_some_and(|member| member.ooms.is_some())
    }

    /// Returns true if the event is from another rank after a fatal failure. Other ranks can fail much later.
    pub fn is_fatal_for_others(&self, event: &Event) -> bool {
        let is_rank = !matches!(self.group, Group::Process(_) | Group::Gpu(_) | Group::Host);
        let is_other = event.process != self.key.process;
        let published = self.published.as_ref();
        is_rank && is_other && published.is_some_and(|p| p.incident.severity == Severity::Fatal)
    }

    /// Returns true if enough time has passed that the case must be diagnosed again: either the process has survived,
    /// or gputop has given up looking for the process that caused the Xid.
    pub fn settles(&mut self, now: Mono) -> bool {
        let is_unclaimed =
            self.published.is_none() && self.is_unmatched_xid() && !self.waits_for_owner(now);
        let is_due = !self.is_settled && now.since(self.last) > SAME_FAILURE_WINDOW;
        self.is_settled |= is_due;
        is_unclaimed || (is_due && self.published.is_some())
    }

    /// Returns true if the case consists only of Xids that are not attributed to a process.
    pub fn is_unmatched_xid(&self) -> bool {
        matches!(self.group, Group::Gpu(_)) && self.members.is_empty() && !self.xids.is_empty()
    }

    /// Returns true while gputop may still find the process that caused the Xids.
    pub fn waits_for_owner(&self, now: Mono) -> bool {
        self.is_unmatched_xid()
            && now.since(self.key.first) < OWNER_TIMEOUT
            && self.xids.iter().all(|(_, _, xid)| is_application_error(xid.number))
    }

    pub fn has_xid(&self, number: u64, gpu: Option<&GpuUuid>) -> bool {
        let is_match =
            |(_, at, xid): &(_, Option<GpuUuid>, Xid)| xid.number == number && at.as_ref() == gpu;
        self.xids.iter().any(is_match)
    }

    pub fn has_xid_on(&self, gpu: Option<&GpuUuid>) -> bool {
        self.xids.iter().any(|(_, at, _)| at.as_ref() == gpu)
    }

    /// Returns the GPU of the case, if the case is not attributed to a process.
    pub fn gpu(&self) -> Option<&GpuUuid> {
        self.key.gpu.as_ref()
    }

    pub fn shares_xid(&self, other: &Self, gpu: &GpuUuid) -> bool {
        self.xids.iter().any(|(_, _, xid)| other.has_xid(xid.number, Some(gpu)))
    }

    /// Returns true if a GPU kernel launched by one of the processes failed.
    pub fn is_fault(&self) -> bool {
        let family = self.published.as_ref().map(|revision| revision.incident.family.as_str());
        family.is_some_and(|family| ["launch", "assert"].contains(&family))
            || self.xids.iter().any(|(process, _, _)| process.is_some())
    }

    /// Moves the Xids of the case `unmatched` to this case, before the case's own Xids.
    pub fn take_xids(&mut self, unmatched: Self) {
        self.bytes += unmatched.bytes;
        self.xids.splice(..0, unmatched.xids);
    }

    pub fn is_over(&self, now: Mono) -> bool {
        now.since(self.last) > OTHER_RANKS_TIMEOUT.max(REPEAT_WINDOW)
    }

    /// Adds an observation to the case. Returns false if a limit is reached and nothing was added.
    pub fn add(&mut self, event: &Event, known: Option<(Measured, Option<OomFigures>)>) -> bool {
        self.last = self.last.max(event.mono);
        let bytes = memory_size::of(event);
        if self.bytes + bytes > MAX_CASE_BYTES {
            return false;
        }
        self.bytes += bytes;
        let mut is_added = match &event.observation {
            Observation::Xid(xid) => self.add_xid(event, xid),
            Observation::Health(change) => {
                let is_lost = change.state == HealthState::Lost;
                let failed = if is_lost { &mut self.lost } else { &mut self.remap_failed };
                failed.clone_from(&event.gpu);
                true
            }
            _ => true,
        };
        let Some(process) = event.process else {
            return is_added;
        };
        let member = self.members.entry(process).or_default();
        member.last = member.last.max(event.mono);
        let (measured, figures) = known.unwrap_or_default();
        // Keep only the first measurements, because later ones describe a process that is already shutting down.
        if member.measured == Measured::default() || figures.is_some() {
            member.measured = measured;
        }
        match &event.observation {
            Observation::Ooms(rose) => {
                let failed = rose.after.saturating_sub(rose.before).max(1);
                let before = member.ooms.take();
                let count = before.as_ref().map_or(0, |(_, count)| *count);
                let figures = before.map(|(first, _)| first).or(figures);
                member.ooms = Some((figures.unwrap_or_default(), count + failed));
            }
            Observation::Log(excerpt) => is_added = member.read(excerpt),
            Observation::Hook(hook) => member.add_hook_event(hook),
            Observation::TraceReplay(replayed) => {
                member.replayed = Some(TraceReplay::clone(replayed));
            }
            Observation::Exit(exit) => member.exit = Some(Exit::clone(exit)),
            _ => {}
        }
        is_added
    }

    fn add_xid(&mut self, event: &Event, xid: &Xid) -> bool {
        let entry = (event.process, event.gpu.clone(), xid.clone());
        let is_full = self.xids.len() >= MAX_XIDS;
        // Replace an Xid that has no text: the driver reports the number at once, and the kernel log line follows
        // later.
        let same = self.xids.iter_mut().find(|(_, gpu, known)| {
            known.number == xid.number && *gpu == event.gpu && known.text.value().is_none()
        });
        match same {
            Some(known) => *known = entry,
            None if is_full => return false,
            None => self.xids.push(entry),
        }
        true
    }

    /// Sets the newest look at ranks that wait for each other.
    pub fn take_stall(&mut self, stall: Stall, now: Mono) {
        self.last = self.last.max(now);
        let member = self.members.entry(stall.process).or_default();
        member.last = member.last.max(now);
        if let Some(stack) = &stall.stack {
            Arc::make_mut(&mut self.scene).take_stack(PythonStack::clone(stack));
        }
        self.stall = Some(stall);
    }

    /// Explains the case by a stall that a rank of another host has caused, unless a stall is known.
    pub fn take_stall_by_other_host(&mut self, stall: Stall) {
        self.stall.get_or_insert(stall);
    }

    /// Returns true if the process is a rank of a job that stalls.
    pub fn stalls(&self, process: Option<ProcessKey>) -> bool {
        let is_rank = |stall: &Stall| process.is_some_and(|key| stall.ranks.contains(&key));
        self.stall.as_ref().is_some_and(is_rank)
    }

    pub fn stack(&mut self, stack: &PythonStack) {
        let Some(member) = self.members.get_mut(&stack.process) else {
            return;
        };
        Arc::make_mut(&mut self.scene).take_stack(stack.clone());
        let Some(thread) = stack.main() else { return };
        let frames = thread.frames.iter();
        let is_search = |frame: &gputop_model::stack::StackFrame| {
            ALGORITHM_SEARCHES.iter().any(|(file, function)| {
                frame.file.ends_with(file) && frame.function.contains(function)
            })
        };
        member.is_search = thread.frames.iter().take(6).any(is_search);
        member.frames = frames
            .rev()
            .map(|frame| TracebackFrame {
                source: None,
                file: frame.file.clone(),
                line: frame.line,
                function: frame.function.clone(),
                code: None,
            })
            .collect();
    }

    pub fn publish(&mut self, revision: &Record) {
        self.published = Some(revision.clone());
        self.measure();
    }

    /// Returns true if `later` is a repetition of this failure in a program that survived both failures.
    pub fn is_repeated_by(&self, later: &Record) -> bool {
        let survived = |revision: &Record| revision.incident.severity != Severity::Fatal;
        self.repeat_of.is_none()
            && later.key.first.since(self.last) <= REPEAT_WINDOW
            && survived(later)
            && self.published.as_ref().is_some_and(|published| {
                survived(published)
                    && published.incident.id == later.incident.id
                    && published.incident.at == later.incident.at
                    && published.processes() == later.processes()
                    && published.key.gpu == later.key.gpu
            })
    }

    /// Records the case `later` as a repetition of this one. `revision` becomes a revision of this case.
    pub fn repeat(&mut self, later: &mut Self, revision: &mut Record) {
        if later.repeat_of.is_none() {
            later.repeat_of = Some(self.key.clone());
            self.repeats += 1;
        }
        self.last = self.last.max(later.last);
        revision.key = IncidentKey { run: revision.key.run, ..self.key.clone() };
        let first = self.published.as_ref().map_or(1, |published| published.incident.count.max(1));
        revision.incident.count = first.max(revision.incident.count + self.repeats);
    }

    pub fn conclude(
        &self,
        catalogue: &Catalogue,
        known: &HashMap<ProcessKey, ProcessInfo>,
        gpu_indices: &HashMap<ProcessKey, u32>,
        gpus: &[Gpu],
        now: Mono,
        source_reader: Option<SourceReader>,
    ) -> Option<Record> {
        let facts = ProcessFacts { known, gpu_indices, source_reader };
        let mut incident =
            self.by_text(catalogue, facts, gpus).or_else(|| self.by_figures(catalogue, facts))?;
        let program = self.key.process.and_then(|key| known.get(&key));
        let command = program.and_then(|program| program.command.clone());
        if let Some(command) = &command
            && program.is_some_and(|program| program.rank.is_none())
        {
            with_command(&mut incident, command);
        }
        if self.key.process.map(|key| key.pid) == incident.fields.pid {
            let file = || program_of(command.as_ref()?).filter(|name| name.ends_with(".py"));
            incident.fields.python_file = incident.fields.python_file.take().or_else(file);
            let program = || program_of(command.as_ref()?);
            incident.fields.program = incident.fields.program.take().or_else(program);
        }
        let time = jiff::Timestamp::from_millisecond(self.key.time.0);
        let key = IncidentKey { run: program.and_then(|program| program.run), ..self.key.clone() };
        let incident = Incident {
            severity: self.severity(&incident, now),
            time: time.ok().map(|time| time.to_string()),
            ..incident
        };
        let text = self.excerpt();
        Some(Record {
            command,
            excerpt: (!text.is_empty()).then_some(Excerpt { text, is_cut: false }),
            scene: Some(Arc::clone(&self.scene)),
            ..Record::new(incident, key)
        })
    }

    /// Diagnoses the case's log text as `gputop explain` does, together with the measurements.
    fn by_text(
        &self,
        catalogue: &Catalogue,
        facts: ProcessFacts<'_>,
        gpus: &[Gpu],
    ) -> Option<Incident> {
        // First, because a timeout follows from it.
        let stall = self.stall.iter().map(|stall| stall.findings(catalogue));
        let mut logs: Vec<LogFindings> = stall.collect();
        for (key, member) in &self.members {
            logs.extend(member.findings(catalogue, *key, facts));
        }
        let kernel = self.kernel_reports(gpus);
        if !kernel.is_empty() {
            logs.push(kernel_report::findings(catalogue, &kernel));
        }
        // A stall by a rank of another host is an incident of that host, and can only explain one of this host.
        let explains = usize::from(self.stall.as_ref().is_some_and(|stall| !stall.is_here));
        if logs.iter().skip(explains).all(|log| log.sightings.is_empty()) {
            return None;
        }
        let mut incident = diagnose(catalogue, &logs, &self.measured()).into_iter().next()?;
        if matches!(incident.detected_by, DetectedBy::Xid | DetectedBy::Exit) {
            incident.log = None;
        }
        self.clear_unknown_line_numbers(&mut incident);
        name_gpu(&mut incident, gpus);
        let reported = self.members.values().find(|m| m.hook_report.is_some());
        if let Some(member) = reported.filter(|_| incident.family == "oom") {
            member.complete(&mut incident);
        }
        Some(incident)
    }

    fn clear_unknown_line_numbers(&self, incident: &mut Incident) {
        let texts = || self.members.values().flat_map(|m| &m.texts);
        if let Some(log) = &mut incident.log {
            let is_counted = texts().any(|t| t.file == log.file && t.first_line.is_some());
            if !is_counted {
                (log.first_line, log.last_line) = (0, 0);
            }
        }
        for one in &mut incident.secondary {
            self.clear_unknown_line_numbers(one);
        }
    }

    /// Returns the kernel's reports of the Xids, and of the processes that the host's OOM killer killed.
    fn kernel_reports(&self, gpus: &[Gpu]) -> Vec<KernelReport<'_>> {
        let xids = self.xids.iter().map(|(process, gpu, xid)| {
            if let Some(line) = xid.text.value() {
                return KernelReport::line(line);
            }
            let known = gpus.iter().find(|g| Some(&g.uuid) == gpu.as_ref());
            let bus = known.and_then(|gpu| gpu.board.pci_bus.value());
            KernelReport::xid(xid.number, bus.map(String::as_str), process.map(|key| key.pid))
        });
        let kills = self.members.iter().filter_map(|(key, member)| {
            let exit = member.exit.as_ref().filter(|exit| exit.oom.killed.get() == Some(true))?;
            if let Some(OomEvidence::KernelLine(line)) = &exit.oom.evidence {
                return Some(KernelReport::line(line));
            }
            let name = exit.last.as_ref().map(|last| last.name.as_str());
            Some(KernelReport::oom_kill(key.pid, name))
        });
        let bus = |uuid: &GpuUuid| {
            let known = gpus.iter().find(|gpu| gpu.uuid == *uuid);
            known.and_then(|gpu| gpu.board.pci_bus.value()).map(String::as_str)
        };
        let lost = self.lost.iter().map(|uuid| KernelReport::gpu_lost(bus(uuid)));
        let remaps = self.remap_failed.iter().map(|uuid| KernelReport::remap_failed(bus(uuid)));
        xids.chain(lost).chain(remaps).chain(kills).collect()
    }

    /// Diagnoses a failed allocation from memory figures alone. Used if the OOM counter increased but gputop found no
    /// error message.
    fn by_figures(&self, catalogue: &Catalogue, facts: ProcessFacts<'_>) -> Option<Incident> {
        let (key, member) = self.members.iter().find(|(_, m)| m.ooms.is_some())?;
        let (mut found, count) = member.found(*key)?;
        facts.set_gpu_index(*key, &mut found);
        let card = catalogue.cards.iter().position(|c| c.id == "oom-capacity")?;
        let sighting = Sighting {
            card,
            count: u32::try_from(count).unwrap_or(u32::MAX),
            found,
            rank: facts.rank(*key),
            frames: member.frames.clone(),
            ..Sighting::default()
        };
        let findings = LogFindings { sightings: vec![sighting], ..LogFindings::default() };
        let incident = diagnose(catalogue, &[findings], &member.measured).into_iter().next()?;
        let mut incident = Incident {
            confidence: incident.confidence * CONFIDENCE_WITHOUT_TEXT,
            detected_by: DetectedBy::Allocator,
            log: None,
            ..incident
        };
        if member.hook_report.is_some() {
            member.complete(&mut incident);
            incident.detected_by = DetectedBy::Hook;
        }
        Some(incident)
    }

    /// Returns the measurements of the case's first process.
    fn measured(&self) -> Measured {
        let first = self.key.process.and_then(|key| self.members.get(&key));
        let first = first.or(self.members.values().next());
        first.map(|member| member.measured.clone()).unwrap_or_default()
    }

    fn severity(&self, incident: &Incident, now: Mono) -> Severity {
        if incident.id == stall::CARD {
            let is_fatal = |one: &Incident| one.severity == Severity::Fatal;
            return match incident.secondary.iter().any(is_fatal) {
                true => Severity::Fatal,
                false => Severity::Note,
            };
        }
        let failed = || self.members.values().filter(|m| m.ooms.is_some());
        if incident.family != "oom" || failed().next().is_none() {
            return incident.severity;
        }
        let exits = || failed().filter_map(|member| member.exit.as_ref());
        if exits().any(|exit| exit.status.get() != Some(0)) {
            return Severity::Fatal;
        }
        // A process that finished successfully must have caught the failure.
        if exits().next().is_some() {
            return Severity::Caught;
        }
        let has_text = self.members.values().any(|m| !m.texts.is_empty());
        // Use the severity from the text until the process has had time to exit. After that, a process that is still
        // running has survived the failure.
        if has_text && now.since(self.last) <= SAME_FAILURE_WINDOW {
            return incident.severity;
        }
        if failed().all(|m| m.is_search) && !has_text {
            return Severity::Note;
        }
        Severity::Caught
    }

    fn excerpt(&self) -> String {
        let texts = self.members.values().flat_map(|m| &m.texts);
        let mut all = String::new();
        for text in texts {
            if all.len() + text.text.len() > MAX_TEXT {
                break;
            }
            if text.skipped > Bytes(0) {
                let _ = writeln!(all, "[skipped {}: the log grew too fast]", text.skipped);
            }
            all.push_str(&text.text);
            if !all.ends_with('\n') {
                all.push('\n');
            }
        }
        all
    }
}

impl CaseMember {
    fn is_out_of_memory(&self) -> bool {
        let mut texts = self.texts.iter();
        self.ooms.is_some() || texts.any(|text| text.text.contains("out of memory"))
    }

    fn take_map(&mut self, failed: &FailureMap) {
        let Some((figures, _)) = &mut self.ooms else {
            return;
        };
        let Some(blocks) = free_blocks::summary(failed, figures) else {
            return;
        };
        let largest = figures.largest_free_block.unwrap_or_default();
        figures.largest_free_block = Some(largest.max(blocks.largest));
        self.measured.request_over = figures.request_over();
        self.measured.free_blocks = Some(blocks);
    }

    fn add_hook_event(&mut self, event: &HookEvent) {
        if let Some(exception) = event.exception.as_deref().filter(|e| e.r#where != "cell") {
            let (source, text) = (TextSource::Hook, exception.traceback.clone());
            self.measured.set_own_pools(&exception.pools);
            self.exception = Some(ObservedText { source, text, ..ObservedText::default() });
        }
        let Some(oom) = event.oom.as_deref() else {
            return;
        };
        let report = HookReport::of(event, oom);
        let measured = &mut self.measured;
        measured.steps = report.measured.steps.or(measured.steps);
        if let Some(largest) = report.measured.largest_free_block {
            (measured.largest_free_block, measured.free_block_lag) = (Some(largest), None);
        }
        measured.largest_free_block_other_streams =
            report.measured.largest_free_block_other_streams;
        if self.ooms.is_none() {
            self.ooms = Some((OomFigures::from_hook(oom), 1));
        }
        self.hook_report = Some(report);
    }

    /// Adds the values reported by the hook and, if the allocation trace was replayed for this failure, the result of
    /// the replay.
    fn complete(&self, incident: &mut Incident) {
        let Some(report) = &self.hook_report else {
            return;
        };
        report.complete(incident);
        let is_match = |replayed: &&TraceReplay| {
            (replayed.ordinal, replayed.free_bytes) == (report.oom.device, report.oom.free_bytes)
        };
        if let Some(replayed) = self.replayed.as_ref().filter(is_match) {
            add_predictions(incident, replayed);
        }
    }

    /// Returns the memory values at a failed allocation for which there is no error message, and the number of
    /// failures.
    fn found(&self, key: ProcessKey) -> Option<(FieldMap, u64)> {
        let (figures, count) = self.ooms.as_ref()?;
        let mut found = figures.found(key);
        if let Some(report) = &self.hook_report {
            found.insert("requested_bytes".into(), report.oom.requested_bytes.0.into());
            found.insert("free_bytes".into(), report.oom.free_bytes.0.into());
        }
        Some((found, *count))
    }

    fn read(&mut self, excerpt: &LogExcerpt) -> bool {
        let file = excerpt.file.value().map_or("its output", String::as_str);
        let held: usize = self.texts.iter().map(|t| t.text.len()).sum();
        if held + excerpt.text.len() > MAX_TEXT {
            return false;
        }
        let file = visible(file.as_bytes(), 4096);
        match self.texts.iter_mut().rev().find(|text| excerpt.continues && text.file == file) {
            Some(text) => {
                text.text.push_str(&excerpt.text);
                // An error can continue in the new part.
                text.findings.take();
            }
            None => self.texts.push(ObservedText {
                file,
                first_line: excerpt.first_line.get(),
                text: excerpt.text.clone(),
                skipped: excerpt.skipped,
                writers: excerpt.writers.clone(),
                ..ObservedText::default()
            }),
        }
        true
    }

    /// Returns the findings from the texts, grouped by file.
    fn findings(
        &self,
        catalogue: &Catalogue,
        key: ProcessKey,
        facts: ProcessFacts<'_>,
    ) -> Vec<LogFindings> {
        let rank = facts.rank(key);
        let mut logs: Vec<LogFindings> = Vec::new();
        let exception = self.exception.iter().filter(|_| self.texts.is_empty());
        for text in self.texts.iter().chain(exception) {
            let mut found = text.findings(catalogue);
            let before = text.first_line.unwrap_or(1).saturating_sub(1);
            for sighting in &mut found.sightings {
                sighting.first_line += before;
                sighting.last_line += before;
                match text.writer(key, sighting, facts) {
                    Some(writer) => {
                        sighting.found.insert("pid".into(), writer.pid.0.into());
                        facts.set_gpu_index(writer, &mut sighting.found);
                    }
                    None => {
                        sighting.found.remove("pid");
                    }
                }
            }
            for traceback in &mut found.tracebacks {
                traceback.first_line += before;
                traceback.last_line += before;
            }
            found.rank = found.rank.or(rank.filter(|_| text.writers.is_empty()));
            match logs.iter_mut().find(|log| log.file == found.file) {
                Some(log) => {
                    log.sightings.append(&mut found.sightings);
                    log.tracebacks.append(&mut found.tracebacks);
                    log.bytes += found.bytes;
                }
                None => logs.push(found),
            }
        }
        if let Some(add_source) = facts.source_reader {
            add_source(&mut logs);
        }
        logs
    }
}

impl ObservedText {
    fn findings(&self, catalogue: &Catalogue) -> LogFindings {
        if let Some(findings) = self.findings.get() {
            return findings.clone();
        }
        let mut reader = match self.source {
            TextSource::Log => LogReader::new(catalogue, &self.file),
            source => LogReader::of(catalogue, source),
        };
        reader.push(self.text.as_bytes());
        let findings = reader.finish();
        if findings.memory() <= MAX_FINDINGS_BYTES {
            let _ = self.findings.set(findings.clone());
        }
        findings
    }

    /// Returns the process that wrote the sighting's log line. A log with one writer belongs to that process. In a
    /// shared log, the rank or a known PID identifies the writer.
    fn writer(
        &self,
        own: ProcessKey,
        sighting: &Sighting,
        facts: ProcessFacts<'_>,
    ) -> Option<ProcessKey> {
        if self.writers.is_empty() {
            return Some(own);
        }
        let by_rank = |rank| self.writers.iter().find(|key| facts.rank(**key) == Some(rank));
        let pid = sighting.found.get("pid").and_then(serde_json::Value::as_u64);
        let by_pid = |pid| self.writers.iter().find(|key| u64::from(key.pid.0) == pid);
        sighting.rank.and_then(by_rank).or_else(|| pid.and_then(by_pid)).copied()
    }
}

/// Names the GPU of an Xid by its index, which the rest of the screen shows, in addition to its PCI address.
pub(super) fn name_gpu(incident: &mut Incident, gpus: &[Gpu]) {
    let found = incident.fields.pci_bus.clone().and_then(|bus| {
        let gpu = gpus.iter().find(|gpu| gpu.board.pci_bus.value() == Some(&bus))?;
        Some((bus, gpu))
    });
    if let Some((bus, gpu)) = found {
        incident.fields.gpu_index = incident.fields.gpu_index.or(Some(gpu.index));
        let (before, after) = (format!("GPU {bus}"), format!("GPU {} ({bus})", gpu.index));
        incident.title = incident.title.replace(&before, &after);
    }
    for one in &mut incident.secondary {
        name_gpu(one, gpus);
    }
}

/// Returns true if the host's OOM killer killed the process. That is an incident even without other observations.
pub fn was_killed_by_host(event: &Event) -> bool {
    match &event.observation {
        Observation::Exit(exit) => exit.oom.killed.get() == Some(true),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_read_again_only_if_it_has_grown() {
        let mut member = CaseMember::default();
        let excerpt =
            |text: &str| LogExcerpt { text: text.into(), continues: true, ..LogExcerpt::default() };
        let contexts = |member: &CaseMember| -> Vec<Arc<str>> {
            let findings = member.texts[0].findings(Catalogue::embedded());
            findings.sightings.iter().map(|sighting| Arc::clone(&sighting.context)).collect()
        };
        member.read(&excerpt("RuntimeError: CUDA error: device-side assert triggered\n"));
        let (first, again) = (contexts(&member), contexts(&member));
        assert!(Arc::ptr_eq(&first[0], &again[0]), "the same findings");
        member.read(&excerpt("RuntimeError: CUDA error: out of memory\n"));
        assert_eq!((first.len(), contexts(&member).len()), (1, 2));
    }
}
