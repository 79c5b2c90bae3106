//! One failure as it becomes known: what was observed of its processes, and what that means now.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write as _;
use std::sync::Arc;

use super::figures::Figures;
use super::group::Group;
use super::process_info::ProcessInfo;
use super::unmatched_xid::{STRAY, is_of_programs};
use super::{AGAIN, CaseKey, OTHER_RANKS, Revision, TOGETHER};
use super::{free_blocks, scene};
use crate::diagnose::catalogue::Catalogue;
use crate::diagnose::evidence::Measured;
use crate::diagnose::fields::FieldMap;
use crate::diagnose::hook_report::{HookReport, NAME, name_source};
use crate::diagnose::judge;
use crate::diagnose::log::{LogFindings, LogReader, Sighting};
use crate::diagnose::predicted_fixes::foretell;
use crate::diagnose::rerun::with_command;
use crate::diagnose::traceback::Frame;
use crate::model::event::{Event, Exit, GpuAtOom, HookEvent, LogExcerpt, Observation, Xid};
use crate::model::gpu::Gpu;
use crate::model::incident::{DetectedBy, Incident, Severity};
use crate::model::pool::FailureMap;
use crate::model::process::ProcessKey;
use crate::model::replay_result::Replayed;
use crate::model::scene::Scene;
use crate::model::stack::PythonStack;
use crate::model::text::visible;
use crate::model::units::{Bytes, GpuUuid, Mono, UnixMillis};

/// Text that is kept for one case.
const MAX_TEXT: usize = 256 << 10;
/// Xids that are kept for one case: a GPU that fails may write thousands, and all of them are judged each time.
const MAX_XIDS: usize = 256;
/// The stack of an allocation that a library tried and let fail: it looks for the fastest algorithm that fits.
const SEARCHES: &[(&str, &str)] = &[
    ("conv.py", "_conv_forward"),
    ("", "autotune"),
    ("", "benchmark"),
];
/// Stands where the bus of a GPU is not known.
const NO_BUS: &str = "ffff:ff:ff";
/// A message makes it certain that PyTorch raised; a counter does not say what of.
const WITHOUT_TEXT: f64 = 0.8;

#[derive(Debug)]
pub struct Case {
    key: CaseKey,
    group: Group,
    time: UnixMillis,
    last: Mono,
    members: BTreeMap<ProcessKey, Member>,
    xids: Vec<(Option<ProcessKey>, Option<GpuUuid>, Xid)>,
    scene: Arc<Scene>,
    told: Option<Revision>,
    /// The severity was told as of a process that lives.
    is_settled: bool,
    again: u32,
    again_of: Option<CaseKey>,
}

/// What is known of the processes.
#[derive(Clone, Copy)]
struct Facts<'a> {
    known: &'a HashMap<ProcessKey, ProcessInfo>,
    places: &'a HashMap<ProcessKey, u32>,
}

impl Facts<'_> {
    fn rank(self, key: ProcessKey) -> Option<u32> {
        self.known.get(&key)?.rank
    }

    /// A program's GPU 0 may be any GPU of the host; the one that is meant there counts.
    fn place(self, key: ProcessKey, found: &mut FieldMap) {
        if let Some(index) = self.places.get(&key) {
            found.insert("gpu_index".into(), (*index).into());
        }
    }
}

/// What was observed of one process.
#[derive(Debug, Default)]
struct Member {
    last: Mono,
    texts: Vec<Text>,
    ooms: Option<(Figures, u64)>,
    measured: Measured,
    frames: Vec<Frame>,
    /// A library was looking for an algorithm when memory ran out.
    is_search: bool,
    /// What the hook measured inside at the last failed allocation.
    heard: Option<HookReport>,
    /// What its allocation trace says of other settings.
    replayed: Option<Replayed>,
    /// The exception that the hook heard nobody catch, with its traceback.
    exception: Option<String>,
    exit: Option<Exit>,
}

/// A piece of a log without a gap.
#[derive(Debug)]
struct Text {
    file: String,
    /// Counted from 1, where that is known.
    first_line: Option<u64>,
    text: String,
    /// What the log held before it and nobody read.
    skipped: Bytes,
    /// Ranks that write to one file; empty where the log is one process's own.
    writers: Vec<ProcessKey>,
}

impl Case {
    pub fn new(key: CaseKey, group: Group, time: UnixMillis) -> Self {
        Self {
            last: key.first,
            scene: Arc::new(Scene {
                at: key.first,
                ..Scene::default()
            }),
            key,
            group,
            time,
            members: BTreeMap::new(),
            xids: Vec::new(),
            told: None,
            is_settled: false,
            again: 0,
            again_of: None,
        }
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

    /// The first is the nearest to the failure; whether it is this one.
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

    pub fn see_gpu(&mut self, process: ProcessKey, there: &GpuAtOom) {
        if let Some(member) = self.members.get_mut(&process)
            && let Some((figures, _)) = &mut member.ooms
        {
            figures.see(process, there);
            member.measured.wanted_over = figures.wanted_over();
        }
    }

    pub fn has_oom_of(&self, process: ProcessKey) -> bool {
        self.members
            .get(&process)
            .is_some_and(|member| member.ooms.is_some())
    }

    /// What failed in one rank makes the others fail much later.
    pub fn is_fatal_for_others(&self, event: &Event) -> bool {
        let is_rank = !matches!(self.group, Group::Process(_) | Group::Gpu(_) | Group::Host);
        let is_other = event.process != self.key.process;
        let told = self.told.as_ref();
        is_rank && is_other && told.is_some_and(|t| t.incident.severity == Severity::Fatal)
    }

    /// The time has come to say that the process survived it, or that nobody came whose Xid it is.
    pub fn settles(&mut self, now: Mono) -> bool {
        let is_nobodys = self.told.is_none() && self.is_stray() && !self.waits(now);
        let is_due = !self.is_settled && now.since(self.last) > TOGETHER;
        self.is_settled |= is_due;
        is_nobodys || (is_due && self.told.is_some())
    }

    /// Xids of a GPU that name no process.
    pub fn is_stray(&self) -> bool {
        matches!(self.group, Group::Gpu(_)) && self.members.is_empty() && !self.xids.is_empty()
    }

    /// Whose they are may still be told.
    pub fn waits(&self, now: Mono) -> bool {
        self.is_stray()
            && now.since(self.key.first) < STRAY
            && self
                .xids
                .iter()
                .all(|(_, _, xid)| is_of_programs(xid.number))
    }

    pub fn has_xid(&self, number: u64, gpu: Option<&GpuUuid>) -> bool {
        let is_it =
            |(_, at, xid): &(_, Option<GpuUuid>, Xid)| xid.number == number && at.as_ref() == gpu;
        self.xids.iter().any(is_it)
    }

    /// Of a stray: the GPU.
    pub fn gpu(&self) -> Option<&GpuUuid> {
        self.key.gpu.as_ref()
    }

    pub fn shares_xid(&self, other: &Self, gpu: &GpuUuid) -> bool {
        let mut own = self.xids.iter();
        own.any(|(_, _, xid)| other.has_xid(xid.number, Some(gpu)))
    }

    /// A kernel of one of its processes went wrong on the GPU.
    pub fn is_fault(&self) -> bool {
        let told = self.told.as_ref().map(|told| told.incident.family.as_str());
        told.is_some_and(|family| ["launch", "assert"].contains(&family))
            || self.xids.iter().any(|(process, _, _)| process.is_some())
    }

    /// The Xids of `stray` are its own; they came before.
    pub fn take_xids(&mut self, stray: Self) {
        self.xids.splice(..0, stray.xids);
    }

    pub fn is_over(&self, now: Mono) -> bool {
        now.since(self.last) > OTHER_RANKS.max(AGAIN)
    }

    /// Returns false if nothing was added, since there is enough of its kind: judging it again would say the same.
    pub fn add(&mut self, event: &Event, known: Option<(Measured, Option<Figures>)>) -> bool {
        self.last = self.last.max(event.mono);
        let mut is_added = match &event.observation {
            Observation::Xid(xid) => self.add_xid(event, xid),
            _ => true,
        };
        let Some(process) = event.process else {
            return is_added;
        };
        let member = self.members.entry(process).or_default();
        member.last = member.last.max(event.mono);
        let (measured, figures) = known.unwrap_or_default();
        // What comes after the failure is measured on a process that is going down.
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
            Observation::Hook(hook) => member.hear(hook),
            Observation::Replayed(replayed) => member.replayed = Some(Replayed::clone(replayed)),
            Observation::Exit(exit) => member.exit = Some(exit.clone()),
            _ => {}
        }
        is_added
    }

    fn add_xid(&mut self, event: &Event, xid: &Xid) -> bool {
        let entry = (event.process, event.gpu.clone(), xid.clone());
        let is_full = self.xids.len() >= MAX_XIDS;
        // The number comes from the driver at once, the kernel's words a moment later.
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

    pub fn stack(&mut self, stack: &PythonStack) {
        let Some(member) = self.members.get_mut(&stack.process) else {
            return;
        };
        Arc::make_mut(&mut self.scene).take_stack(stack.clone());
        let Some(thread) = stack.main() else { return };
        let frames = thread.frames.iter();
        let is_search = |frame: &crate::model::stack::StackFrame| {
            SEARCHES.iter().any(|(file, function)| {
                frame.file.ends_with(file) && frame.function.contains(function)
            })
        };
        member.is_search = thread.frames.iter().take(6).any(is_search);
        member.frames = frames
            .rev()
            .map(|frame| Frame {
                file: frame.file.clone(),
                line: frame.line,
                function: frame.function.clone(),
                code: None,
            })
            .collect();
    }

    pub fn tell(&mut self, revision: &Revision) {
        self.told = Some(revision.clone());
    }

    /// `later` is the same failure once more, in a program that survives it.
    pub fn is_repeated_by(&self, later: &Revision) -> bool {
        let survived = |revision: &Revision| revision.incident.severity != Severity::Fatal;
        self.again_of.is_none()
            && later.at.since(self.last) <= AGAIN
            && survived(later)
            && self.told.as_ref().is_some_and(|told| {
                survived(told)
                    && told.incident.id == later.incident.id
                    && told.incident.at == later.incident.at
                    && told.processes == later.processes
            })
    }

    /// Counts `later`, whose `revision` becomes one of this case.
    pub fn repeat(&mut self, later: &mut Self, revision: &mut Revision) {
        if later.again_of.is_none() {
            later.again_of = Some(self.key.clone());
            self.again += 1;
        }
        self.last = self.last.max(later.last);
        revision.key = self.key.clone();
        let first = self
            .told
            .as_ref()
            .map_or(1, |told| told.incident.count.max(1));
        revision.incident.count = first.max(revision.incident.count + self.again);
    }

    /// What is concluded now; `None` while there is nothing to say.
    pub fn judge(
        &self,
        catalogue: &Catalogue,
        known: &HashMap<ProcessKey, ProcessInfo>,
        places: &HashMap<ProcessKey, u32>,
        gpus: &[Gpu],
        now: Mono,
    ) -> Option<Revision> {
        let facts = Facts { known, places };
        let mut incident = self
            .by_text(catalogue, facts, gpus)
            .or_else(|| self.by_figures(catalogue, facts))?;
        let program = self.key.process.and_then(|key| known.get(&key));
        let command = program.and_then(|program| program.command.clone());
        if let Some(command) = &command
            && program.is_some_and(|program| program.rank.is_none())
        {
            with_command(&mut incident, command);
        }
        let time = jiff::Timestamp::from_millisecond(self.time.0);
        Some(Revision {
            key: self.key.clone(),
            incident: Incident {
                severity: self.severity(&incident, now),
                time: time.ok().map(|time| time.to_string()),
                ..incident
            },
            at: self.key.first,
            time: self.time,
            processes: self.processes().collect(),
            run: program.and_then(|program| program.run),
            command,
            excerpt: self.excerpt(),
            scene: Arc::clone(&self.scene),
        })
    }

    /// As `explain` would judge the text, with what was measured beside it.
    fn by_text(&self, catalogue: &Catalogue, facts: Facts<'_>, gpus: &[Gpu]) -> Option<Incident> {
        let mut logs = Vec::new();
        for (key, member) in &self.members {
            logs.extend(member.findings(catalogue, *key, facts));
        }
        let kernel = self.kernel_lines(gpus);
        if !kernel.is_empty() {
            let mut reader = LogReader::new(catalogue, "kernel log");
            reader.push(kernel.as_bytes());
            logs.push(reader.finish());
        }
        if logs.iter().all(|log| log.sightings.is_empty()) {
            return None;
        }
        let mut incident = judge(catalogue, &logs, &self.measured())
            .into_iter()
            .next()?;
        if incident
            .log
            .as_ref()
            .is_some_and(|log| log.file == "kernel log")
        {
            let by_xid = incident.fields.xid.is_some();
            incident.detected_by = if by_xid {
                DetectedBy::Xid
            } else {
                DetectedBy::Exit
            };
            incident.log = None;
            let bus = &mut incident.fields.pci_bus;
            *bus = bus.take().filter(|bus| bus != NO_BUS);
        }
        self.without_lines_nobody_counted(&mut incident);
        let heard = self.members.values().find(|m| m.heard.is_some());
        if let Some(member) = heard.filter(|_| incident.family == "oom") {
            member.complete(&mut incident);
        }
        name_source(&mut incident);
        Some(incident)
    }

    fn without_lines_nobody_counted(&self, incident: &mut Incident) {
        let texts = || self.members.values().flat_map(|m| &m.texts);
        if let Some(log) = &mut incident.log {
            let is_counted = texts().any(|t| t.file == log.file && t.first_line.is_some());
            if !is_counted {
                (log.first_line, log.last_line) = (0, 0);
            }
        }
        for one in &mut incident.secondary {
            self.without_lines_nobody_counted(one);
        }
    }

    /// The lines that the kernel wrote; where only the number of an Xid is known, the line it would have written.
    fn kernel_lines(&self, gpus: &[Gpu]) -> String {
        let mut lines = String::new();
        for (process, gpu, xid) in &self.xids {
            match xid.text.value() {
                Some(text) => lines.push_str(text),
                None => {
                    let bus = gpus.iter().find(|g| Some(&g.uuid) == gpu.as_ref());
                    let bus = bus.and_then(|g| g.board.pci_bus.value().cloned());
                    let bus = bus.unwrap_or_else(|| NO_BUS.into());
                    let _ = write!(lines, "NVRM: Xid (PCI:{bus}): {}", xid.number);
                    if let Some(process) = process {
                        let _ = write!(lines, ", pid={}", process.pid);
                    }
                }
            }
            lines.push('\n');
        }
        for (key, member) in &self.members {
            let exit = member.exit.as_ref();
            if let Some(text) = exit.and_then(|exit| host_killer(*key, exit)) {
                lines.push_str(&text);
                lines.push('\n');
            }
        }
        lines
    }

    /// A counter that rose, and nothing said.
    fn by_figures(&self, catalogue: &Catalogue, facts: Facts<'_>) -> Option<Incident> {
        let mut failed = self.members.iter().filter(|(_, m)| m.ooms.is_some());
        let (key, member) = failed.next()?;
        let (mut found, count) = member.found(*key)?;
        facts.place(*key, &mut found);
        let card = catalogue
            .cards
            .iter()
            .position(|c| c.id == "oom-capacity")?;
        let sighting = Sighting {
            card,
            weak: false,
            count: u32::try_from(count).unwrap_or(u32::MAX),
            found,
            table: None,
            first_line: 1,
            last_line: 1,
            rank: facts.rank(*key),
            writer: String::new(),
            time: None,
            frames: member.frames.clone(),
            quote: crate::model::incident::Quote::default(),
            context: "".into(),
        };
        let findings = LogFindings {
            sightings: vec![sighting],
            ..LogFindings::default()
        };
        let incident = judge(catalogue, &[findings], &member.measured)
            .into_iter()
            .next()?;
        let mut incident = Incident {
            confidence: incident.confidence * WITHOUT_TEXT,
            detected_by: DetectedBy::Allocator,
            log: None,
            ..incident
        };
        if member.heard.is_some() {
            member.complete(&mut incident);
            incident.detected_by = DetectedBy::Hook;
        }
        Some(incident)
    }

    /// Of the process that was first.
    fn measured(&self) -> Measured {
        let first = self.key.process.and_then(|key| self.members.get(&key));
        let first = first.or(self.members.values().next());
        first
            .map(|member| member.measured.clone())
            .unwrap_or_default()
    }

    fn severity(&self, incident: &Incident, now: Mono) -> Severity {
        let failed = || self.members.values().filter(|m| m.ooms.is_some());
        if incident.family != "oom" || failed().next().is_none() {
            return incident.severity;
        }
        let ends = || failed().filter_map(|member| member.exit.as_ref());
        if ends().any(|exit| exit.status.get() != Some(0)) {
            return Severity::Fatal;
        }
        // It came to its end as if nothing had been.
        if ends().next().is_some() {
            return Severity::Caught;
        }
        let is_said = self.members.values().any(|m| !m.texts.is_empty());
        // What was said is believed until the process has had the time to end and lives.
        if is_said && now.since(self.last) <= TOGETHER {
            return incident.severity;
        }
        if failed().all(|m| m.is_search) && !is_said {
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

impl Member {
    fn take_map(&mut self, failed: &FailureMap) {
        let Some((figures, _)) = &mut self.ooms else {
            return;
        };
        let Some(holes) = free_blocks::of(failed, figures) else {
            return;
        };
        figures.largest_hole = Some(figures.largest_hole.unwrap_or_default().max(holes.largest));
        self.measured.wanted_over = figures.wanted_over();
        self.measured.holes = Some(holes);
    }

    fn hear(&mut self, event: &HookEvent) {
        if let Some(exception) = event.exception.as_deref().filter(|e| e.r#where != "cell") {
            self.exception = Some(exception.traceback.clone());
        }
        let Some(oom) = event.oom.as_deref() else {
            return;
        };
        let heard = HookReport::of(event, oom);
        let measured = &mut self.measured;
        measured.steps = heard.measured.steps.or(measured.steps);
        if heard.measured.largest_hole.is_some() {
            (measured.largest_hole, measured.hole_lag) = (heard.measured.largest_hole, None);
        }
        measured.largest_hole_elsewhere = heard.measured.largest_hole_elsewhere;
        if self.ooms.is_none() {
            self.ooms = Some((Figures::heard(oom), 1));
        }
        self.heard = Some(heard);
    }

    /// Adds what only the hook could tell, and the replay of the failure that it told of.
    fn complete(&self, incident: &mut Incident) {
        let Some(heard) = &self.heard else { return };
        heard.complete(incident);
        let is_it = |replayed: &&Replayed| {
            (replayed.ordinal, replayed.free_bytes) == (heard.oom.device, heard.oom.free_bytes)
        };
        if let Some(replayed) = self.replayed.as_ref().filter(is_it) {
            foretell(incident, replayed);
        }
    }

    /// The figures of a failed allocation of which no log tells.
    fn found(&self, key: ProcessKey) -> Option<(FieldMap, u64)> {
        let (figures, count) = self.ooms.as_ref()?;
        let mut found = figures.found(key);
        if let Some(heard) = &self.heard {
            found.insert("requested_bytes".into(), heard.oom.requested_bytes.0.into());
            found.insert("free_bytes".into(), heard.oom.free_bytes.0.into());
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
        let mut texts = self.texts.iter_mut().rev();
        let before = texts.find(|text| excerpt.continues && text.file == file);
        match before {
            Some(text) => text.text.push_str(&excerpt.text),
            None => self.texts.push(Text {
                file,
                first_line: excerpt.first_line.get(),
                text: excerpt.text.clone(),
                skipped: excerpt.skipped,
                writers: excerpt.writers.clone(),
            }),
        }
        true
    }

    /// What its texts hold, each file by itself.
    fn findings(
        &self,
        catalogue: &Catalogue,
        key: ProcessKey,
        facts: Facts<'_>,
    ) -> Vec<LogFindings> {
        let rank = facts.rank(key);
        let mut logs: Vec<LogFindings> = Vec::new();
        if let Some(exception) = self.exception.as_ref().filter(|_| self.texts.is_empty()) {
            let mut reader = LogReader::new(catalogue, NAME);
            reader.push(exception.as_bytes());
            let mut found = reader.finish();
            for sighting in &mut found.sightings {
                sighting.found.insert("pid".into(), key.pid.0.into());
                facts.place(key, &mut sighting.found);
            }
            found.rank = rank;
            logs.push(found);
        }
        for text in &self.texts {
            let mut reader = LogReader::new(catalogue, &text.file);
            reader.push(text.text.as_bytes());
            let mut found = reader.finish();
            let before = text.first_line.unwrap_or(1).saturating_sub(1);
            for sighting in &mut found.sightings {
                sighting.first_line += before;
                sighting.last_line += before;
                match text.writer(key, sighting, facts) {
                    Some(writer) => {
                        sighting.found.insert("pid".into(), writer.pid.0.into());
                        facts.place(writer, &mut sighting.found);
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
        logs
    }
}

impl Text {
    /// Whose words a sighting is. What a process wrote is about itself, whatever it says; of several that share a log
    /// the rank tells which, or a PID that is one of theirs.
    fn writer(&self, own: ProcessKey, sighting: &Sighting, facts: Facts<'_>) -> Option<ProcessKey> {
        if self.writers.is_empty() {
            return Some(own);
        }
        let by_rank = |rank| {
            self.writers
                .iter()
                .find(|key| facts.rank(**key) == Some(rank))
        };
        let said = sighting
            .found
            .get("pid")
            .and_then(serde_json::Value::as_u64);
        let by_pid = |pid| self.writers.iter().find(|key| u64::from(key.pid.0) == pid);
        let writer = sighting.rank.and_then(by_rank);
        writer.or_else(|| said.and_then(by_pid)).copied()
    }
}

/// The kernel's words on why a process was killed, if it was for want of host memory; in its words also where only
/// its counter says so.
fn host_killer(process: ProcessKey, exit: &Exit) -> Option<String> {
    if exit.oom.killed.get() != Some(true) {
        return None;
    }
    let said = exit.oom.evidence.clone();
    Some(
        said.filter(|line| line.contains("Killed process"))
            .unwrap_or_else(|| {
                let name = exit.last.as_ref().map_or("?", |last| last.name.as_str());
                format!("Out of memory: Killed process {} ({name})", process.pid)
            }),
    )
}

/// Killed from outside, by a kernel that says why: an incident though nothing was said before.
pub fn was_killed_by_the_host(event: &Event) -> bool {
    match &event.observation {
        Observation::Exit(exit) => exit.oom.killed.get() == Some(true),
        _ => false,
    }
}
