//! Builds an incident from a sighting (a signature match in a log) and its error card.

use std::collections::BTreeSet;
use std::ops::RangeInclusive;

use gputop_model::incident::{DetectedBy, Incident, LogLocation, Quote};
use gputop_model::process::NOTEBOOK;
use gputop_model::text;

use super::rank_comparison::RankComparison;
use super::standard_time::standard_time;
use super::{causes, grouping};
use crate::card::Card;
use crate::conclusion::diagnosis::{Diagnosis, Item};
use crate::evidence::{self, Case};
use crate::fields::{self, FieldMap};
use crate::fixes;
use crate::log::{LogFindings, TextSource};
use crate::tables::base_name;
use crate::template;
use crate::traceback::{Traceback, TracebackFrame};
use crate::workload::Workloads;

/// Factor applied to the confidence if the matched text identifies the error but contains no details.
const WEAK_FACTOR: f64 = 0.7;

/// Families of out-of-memory errors that pools of JAX, TensorFlow and CuPy report.
const POOL_FAMILIES: [&str; 3] = ["oom-jax", "oom-tf", "oom-cupy"];

/// Minimum free memory, in bytes, that is worth mentioning beside fragmented memory.
const MIN_MENTIONED_FREE: u64 = 100 << 20;
/// Sentence for the title of an out-of-memory error to which fragmentation contributed.
const ALSO_FRAGMENTED: &str =
    "It would have fitted without fragmentation: another {fragmented_bytes} was cached in pieces.";
/// Sentences for the title of an error in a pool of JAX, TensorFlow or CuPy, the first with known values.
const POOL_STATE: [&str; 2] = [
    "Its pool had {pool_reserved_bytes}: {pool_in_use_bytes} in use, largest free chunk {pool_largest_free_bytes} ({pool_read}).",
    "Its pool had {pool_reserved_bytes}: {pool_in_use_bytes} in use ({pool_read}).",
];

/// Returns the incident for the sighting `item`. `beside` lists the other cards that matched messages of the same
/// crash.
pub(super) fn incident(
    diagnosis: &Diagnosis<'_>,
    item: &Item<'_>,
    beside: &[&str],
    ranks: usize,
    comparison: Option<&RankComparison>,
) -> Incident {
    let card = diagnosis.card(item);
    let sighting = item.sighting;
    let mut found = details(diagnosis, item, comparison);
    let measured = diagnosis.case(item, beside, ranks);
    if POOL_FAMILIES.contains(&card.family.as_str()) {
        evidence::add_fields(&measured, &mut found);
    }
    if card.family.starts_with("oom") {
        evidence::add_preallocation(&measured, &mut found);
    }
    let exception = Some(card)
        .filter(|card| card.family == "server" && !found.contains_key("engine_error"))
        .and_then(|_| grouping::engine_exception(diagnosis, item));
    // Another process may have printed the exception, so it is not in the text around the report.
    let context = exception.map(|traceback| {
        let error = engine_error(traceback);
        let files = traceback.frames.iter().map(|frame| frame.file.as_str());
        let context: Vec<&str> = files.chain([error.as_str(), &sighting.context]).collect();
        let context = context.join("\n");
        found.insert("engine_error".into(), error.into());
        context
    });
    let case = Case {
        found: &found,
        context: context.as_deref().unwrap_or(&sighting.context),
        comparison: comparison.map(|c| c.sentence.as_str()),
        ..diagnosis.case(item, beside, ranks)
    };
    let causes = causes::weighed(card, &case, &found);
    let needs = needs(card, &case, &found);
    let log = &diagnosis.logs[item.log];
    let text = program_text(item, &case);
    let workloads = Workloads::embedded();
    // The kernel log names the program, which the text around it usually does not show.
    let process = found.get("process").and_then(serde_json::Value::as_str);
    let native = process.filter(|name| evidence::smi::is_native(name)).map(|_| "native".to_owned());
    let usual = card.workload.as_ref().or(native.as_ref());
    let setting = workloads.recognize_or(&text, &log.start, usual);
    let incident = Incident {
        confidence: card.confidence * if sighting.weak { WEAK_FACTOR } else { 1.0 },
        count: sighting.count,
        time: sighting.time.as_deref().and_then(standard_time),
        detected_by: detected_by(log),
        log: location(log, sighting.first_line..=sighting.last_line, diagnosis.rank(item)),
        quote: sighting.quote.clone(),
        at: own_frame(&sighting.frames).map(|frame| at(frame, is_asynchronous(card))),
        needs,
        ..filled(card, &found)
    };
    let script = script(&sighting.frames);
    let mut incident =
        fixes::adapted(incident, card, causes, &found, &setting, Some(&case), script);
    // The message can name the program too.
    let program = program_name(&sighting.frames, setting.foreign_program());
    incident.fields.program = program.or(incident.fields.program);
    causes::lower_unseparated(&mut incident.causes);
    incident
}

fn detected_by(log: &LogFindings) -> DetectedBy {
    match log.source {
        TextSource::Hook => DetectedBy::Hook,
        TextSource::Ranks => DetectedBy::Ranks,
        TextSource::Log | TextSource::KernelLog => DetectedBy::Log,
    }
}

/// Returns the location of some lines, or `None` if they are in no log. The line numbers are 0 if they are not known.
fn location(
    log: &LogFindings,
    lines: RangeInclusive<u64>,
    rank: Option<u32>,
) -> Option<LogLocation> {
    let (first_line, last_line) = match log.source {
        TextSource::Log => lines.into_inner(),
        TextSource::KernelLog => (0, 0),
        TextSource::Hook | TextSource::Ranks => return None,
    };
    Some(LogLocation { file: log.file.clone(), first_line, last_line, rank })
}

/// Returns the details of the sighting's text, and those that follow from its stack, its rank and the other ranks.
fn details(
    diagnosis: &Diagnosis<'_>,
    item: &Item<'_>,
    comparison: Option<&RankComparison>,
) -> FieldMap {
    let sighting = item.sighting;
    let mut found = sighting.found.clone();
    if item.card != sighting.card {
        diagnosis.catalogue.signatures.read_around(item.card, &sighting.context, &mut found);
    }
    if let Some(frame) = own_frame(&sighting.frames) {
        found.insert("python_file".into(), base_name(&frame.file).into());
        found.insert("python_line".into(), frame.line.into());
    }
    if let Some(rank) = diagnosis.rank(item) {
        found.entry("rank").or_insert_with(|| rank.into());
    }
    if let Some(rank) = comparison.and_then(|c| c.odd_rank)
        && diagnosis.rank(item) != Some(rank)
    {
        found.insert("lagging_rank".into(), rank.into());
    }
    let bytes = |name: &str| found.get(name).and_then(serde_json::Value::as_u64);
    if let (Some(requested), Some(free)) = (bytes("requested_bytes"), bytes("free_bytes"))
        && requested > free
    {
        found.insert("missing_bytes".into(), (requested - free).into());
    }
    if let Some(fragmentation) = evidence::fragmentation(&found) {
        found.insert("fragmented_bytes".into(), fragmentation.cached.into());
        if let Some(free) = fragmentation.free.filter(|free| *free >= MIN_MENTIONED_FREE) {
            found.insert("fragment_free_bytes".into(), free.into());
        }
    }
    if let Some(package) = evidence::kernel_package(&sighting.frames) {
        found.insert("kernel_package".into(), package.into());
    }
    found
}

/// Returns the text that shows which program failed: the log line's prefix, the error message and the stack.
fn program_text(item: &Item<'_>, case: &Case<'_>) -> String {
    let files = case.frames.iter().map(|frame| frame.file.as_str());
    let parts: Vec<&str> =
        [item.sighting.writer.as_str(), case.context].into_iter().chain(files).collect();
    parts.join("\n")
}

/// Formats a server's exception with its location: `KeyError: 'x' (loader.py:71)`.
fn engine_error(traceback: &Traceback) -> String {
    let name = traceback.exception.rsplit('.').next().unwrap_or_default();
    let message = text::visible(traceback.message.as_bytes(), 160);
    let message = message.trim_end_matches('.');
    let Some(frame) = traceback.frames.last() else {
        return format!("{name}: {message}");
    };
    let place = format!("{}:{}", base_name(&frame.file), frame.line);
    if message.is_empty() {
        format!("{name} at {place}, in {}", frame.function)
    } else {
        format!("{name}: {message} ({place})")
    }
}

/// Returns the card's checks, except those that the evidence has made unnecessary.
fn needs(card: &Card, case: &Case<'_>, found: &FieldMap) -> Vec<String> {
    let open = card.needs.iter().filter(|need| causes::is_open(need, card, case));
    open.filter_map(|need| template::fill(need.says(), found)).collect()
}

/// Adds fields from other messages about the same failure. For example, a failed assertion names its kernel, and the
/// exception after the assertion contains the error code.
pub(super) fn complete<'i>(
    incident: &mut Incident,
    cause: &Item<'i>,
    is_asynchronous: bool,
    others: impl Iterator<Item = &'i Item<'i>>,
) {
    let mut found = FieldMap::new();
    let mut ranks = BTreeSet::new();
    let mut program = None;
    for other in
        others.filter(|other| other.sighting.card == cause.sighting.card && other.log == cause.log)
    {
        for name in ["cuda_error", "cuda_error_code", "source_file", "source_line", "pid"] {
            if let Some(value) = other.sighting.found.get(name) {
                found.entry(name).or_insert_with(|| value.clone());
            }
        }
        ranks.extend(other.sighting.rank);
        if let Some(frame) = own_frame(&other.sighting.frames).filter(|_| incident.at.is_none()) {
            incident.at = Some(at(frame, is_asynchronous));
            found.insert("python_file".into(), base_name(&frame.file).into());
            found.insert("python_line".into(), frame.line.into());
            program = program.or_else(|| program_name(&other.sighting.frames, None));
        }
    }
    // If several ranks report the failure, any of them can have printed a line without a rank.
    if let (Some(&rank), 1) = (ranks.first(), ranks.len()) {
        found.insert("rank".into(), rank.into());
    }
    let more = fields::typed(&found);
    let fields = &mut incident.fields;
    fields.cuda_error = fields.cuda_error.take().or(more.cuda_error);
    fields.cuda_error_code = fields.cuda_error_code.or(more.cuda_error_code);
    if fields.source_file.is_none() {
        fields.source_file = more.source_file;
        fields.source_line = more.source_line;
    }
    fields.rank = fields.rank.or(more.rank);
    if fields.python_file.is_none() {
        fields.python_file = more.python_file;
        fields.python_line = more.python_line;
        fields.program = fields.program.take().or(program);
    }
    fields.pid = fields.pid.or(more.pid);
}

/// Returns the card's title, with a sentence about fragmentation if that is part of the cause and the title does not
/// name it.
fn title(card: &Card, found: &FieldMap) -> String {
    let title = template::first(&card.titles, found);
    let names_it = card.titles.iter().any(|title| title.contains("{fragmented_bytes}"));
    let also = template::fill(ALSO_FRAGMENTED, found).filter(|_| card.family == "oom" && !names_it);
    let pool = POOL_STATE.iter().find_map(|state| template::fill(state, found));
    [Some(title), also, pool].into_iter().flatten().collect::<Vec<_>>().join(" ")
}

/// Returns an incident with the card's sentences, after filling in their placeholders.
fn filled(card: &Card, found: &FieldMap) -> Incident {
    let known = |texts: &[String]| texts.iter().filter_map(|t| template::fill(t, found)).collect();
    let mut shown = found.clone();
    shown.retain(|name, _| {
        !name.starts_with("assertion_")
            && !name.starts_with("xid_")
            && !name.starts_with("other_pid")
            && !name.starts_with("other_bytes")
    });
    Incident {
        id: card.id.clone(),
        family: card.family.clone(),
        severity: card.severity,
        title: text::visible(title(card, found).as_bytes(), 300),
        detected_by: DetectedBy::Log,
        fields: fields::typed(&shown),
        not_helpful: known(&card.not_helpful),
        references: card.references.clone(),
        headline: card.headline.clone(),
        needs: card.needs.iter().filter_map(|need| template::fill(need.says(), found)).collect(),
        ..Incident::default()
    }
}

/// Returns an incident whose cause is an ordinary Python exception, with the later failure as its consequence.
pub(super) fn program(
    diagnosis: &Diagnosis<'_>,
    log: usize,
    traceback: &Traceback,
    failure: Incident,
) -> Incident {
    let Some(card) = diagnosis.catalogue.card("program-exception") else {
        return failure;
    };
    let mut found = FieldMap::new();
    found.insert("exception".into(), traceback.exception.clone().into());
    found.insert("message".into(), text::visible(traceback.message.as_bytes(), 200).into());
    let place = own_frame(&traceback.frames);
    if let Some(frame) = place {
        found.insert("python_file".into(), base_name(&frame.file).into());
        found.insert("python_line".into(), frame.line.into());
    }
    let rank = traceback.rank.or(diagnosis.logs[log].rank);
    if let Some(rank) = rank {
        found.insert("rank".into(), rank.into());
    }
    let after = &failure.id;
    let who = rank.map_or_else(|| "The program".to_owned(), |rank| format!("Rank {rank}"));
    let mut secondary = vec![Incident { secondary: Vec::new(), ..failure.clone() }];
    secondary.extend(failure.secondary.iter().cloned());
    let setting = Workloads::embedded().recognize("", &diagnosis.logs[log].start);
    let incident = Incident {
        confidence: card.confidence,
        count: 1,
        time: traceback.time.as_deref().and_then(standard_time),
        detected_by: detected_by(&diagnosis.logs[log]),
        log: location(&diagnosis.logs[log], traceback.first_line..=traceback.last_line, rank),
        quote: Quote {
            text: text::visible(
                format!("{}: {}", traceback.exception, traceback.message).as_bytes(),
                600,
            ),
            labels: Vec::new(),
        },
        at: place.map(|frame| at(frame, false)),
        why_first: Some(format!("{who} failed first and caused {after}.")),
        secondary,
        ..filled(card, &found)
    };
    let script = script(&traceback.frames);
    let mut incident = fixes::adapted(incident, card, Vec::new(), &found, &setting, None, script);
    incident.fields.program = program_name(&traceback.frames, setting.foreign_program());
    incident
}

/// Returns the program's name: the started script, `notebook` for a cell, or `foreign`, a program that its users do not
/// write themselves. The innermost file may be a module of any of these.
fn program_name(frames: &[TracebackFrame], foreign: Option<&str>) -> Option<String> {
    own_frame(frames)?;
    started_script(frames)
        .or_else(|| frames.iter().any(TracebackFrame::is_cell).then_some(NOTEBOOK))
        .or(foreign)
        .map(str::to_owned)
}

/// Returns the script that was started: the file of the outermost stack frame, if that frame is at the top level of a
/// user's file. A log may begin in the middle of a traceback, so the outermost frame in the log may be in an imported
/// module instead. If only such a file is known, returns a placeholder, or the file's name if it is `train.py`, which other
/// files rarely import.
fn script(frames: &[TracebackFrame]) -> Option<&str> {
    started_script(frames).or_else(|| {
        let name = base_name(&own_frame(frames)?.file);
        Some(if name == "train.py" { name } else { "YOUR_SCRIPT.py" })
    })
}

fn started_script(frames: &[TracebackFrame]) -> Option<&str> {
    let mut frames = frames.iter().filter(|frame| !frame.file.starts_with("<frozen"));
    let first = frames.next().filter(|frame| frame.is_users())?;
    let is_import = first
        .code
        .as_ref()
        .is_some_and(|code| code.starts_with("import ") || code.starts_with("from "));
    let file = base_name(&first.file);
    (first.function == "<module>" && !is_import && file.ends_with(".py")).then_some(file)
}

/// Returns the innermost frame in one of the user's files. Library frames do not identify the user's script.
fn own_frame(frames: &[TracebackFrame]) -> Option<&TracebackFrame> {
    frames.iter().rev().find(|frame| frame.is_users())
}

/// Returns true for GPU kernel errors, which are reported only when the program next waits for the GPU.
pub(super) fn is_asynchronous(card: &Card) -> bool {
    ["launch", "assert"].contains(&card.family.as_str())
}

/// Returns the file, line and code of a frame: `train.py:57  loss.backward()`.
fn at(frame: &TracebackFrame, is_asynchronous: bool) -> String {
    const WAITS: &[&str] = &[
        ".item()",
        ".cpu()",
        ".tolist()",
        ".numpy()",
        "synchronize(",
        "print(",
        ".to(\"cpu\")",
        ".to('cpu')",
    ];
    let place = format!("{}:{}", base_name(&frame.file), frame.line);
    let shown = match &frame.code {
        Some(code) if is_asynchronous && WAITS.iter().any(|w| code.contains(w)) => {
            format!("{place}  {code}  (this line only waits; an earlier operation failed)")
        }
        Some(code) => format!("{place}  {code}"),
        None if frame.function.is_empty() => place,
        None => format!("{place}  in {}", frame.function),
    };
    text::visible(shown.as_bytes(), 160)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalogue::Catalogue;

    #[test]
    fn a_library_function_or_an_imported_module_is_not_the_script() {
        let frame = |file: &str, function: &str, code: &str| TracebackFrame {
            file: file.to_owned(),
            line: 1,
            function: function.to_owned(),
            code: Some(code.to_owned()),
            source: None,
        };
        let main = frame("/home/ana/train_net.py", "<module>", "main()");
        let start = frame("<frozen runpy>", "_run_code", "exec(code)");
        assert_eq!(script(&[start, main]), Some("train_net.py"));
        let middle = frame("/opt/engine/unet.py", "forward", "x = self.up(x)");
        assert_eq!(script(&[middle]), Some("YOUR_SCRIPT.py"));
        let imported = frame("/src/axolotl/builder.py", "<module>", "from axolotl import x");
        assert_eq!(script(&[imported]), Some("YOUR_SCRIPT.py"));
        assert_eq!(script(&[]), None);
    }

    /// Returns the program in the first line of an explanation.
    fn named(log: &str) -> Option<String> {
        let found = crate::explain(Catalogue::embedded(), "x.log", log.as_bytes());
        found.into_iter().next()?.fields.program
    }

    #[test]
    fn the_program_is_named_by_its_script_and_not_by_a_module_or_a_temporary_file() {
        const OOM: &str =
            "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n";
        let log = |frames: &[(&str, &str)]| {
            let frame = |(file, function): &(&str, &str)| {
                format!("  File \"{file}\", line 4, in {function}\n    y = f(x)\n")
            };
            let frames: String = frames.iter().map(frame).collect();
            format!("Traceback (most recent call last):\n{frames}{OOM}")
        };
        let module = log(&[("/home/ana/train.py", "<module>"), ("/home/ana/layers.py", "forward")]);
        assert_eq!(named(&module).as_deref(), Some("train.py"));
        for cell in [
            "/tmp/ipykernel_3211/2209117764.py",
            "C:\\Users\\ana\\AppData\\Local\\Temp\\ipykernel_88\\10.py",
            "/tmp/ipython-input-3-941.py",
            "/home/ana/.ipykernel/812/command-77-41",
        ] {
            let cell = log(&[(cell, "<cell line: 4>"), ("/home/ana/layers.py", "forward")]);
            assert_eq!(named(&cell).as_deref(), Some("notebook"), "{cell}");
        }
        let ipython = format!(
            "OutOfMemoryError                          Traceback (most recent call last)\n/tmp/ipykernel_3211/2209117764.py in <module>\n----> 4 y = f(x)\n\nOutOfMemoryError: {}",
            OOM.split_once(' ').unwrap_or_default().1
        );
        assert_eq!(named(&ipython).as_deref(), Some("notebook"));
        let server = log(&[("/opt/engine/worker/gpu_worker.py", "execute_model")]);
        let server = format!("INFO [vllm.entrypoints] vLLM API server version 0.6.3\n{server}");
        assert_eq!(named(&server).as_deref(), Some("vLLM"));
    }
}
