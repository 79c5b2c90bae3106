//! Builds the incident of a sighting from its card.

use super::rank_comparison::RankComparison;
use super::{Item, Judge, causes};
use crate::diagnose::card::{Card, CheckHint, FixRule};
use crate::diagnose::evidence::{self, Case, Finding};
use crate::diagnose::fields::{self, FieldMap};
use crate::diagnose::tables::base_name;
use crate::diagnose::template;
use crate::diagnose::traceback::{Frame, Traceback};
use crate::model::incident::{Cause, DetectedBy, Fix, Incident, LogLocation, Quote, Verdict};
use crate::model::text;

/// Factor for the confidence of text that shows the error but not its details.
const WEAK_FACTOR: f64 = 0.7;

/// Returns the incident of `item`. `beside` are the other cards in its crash.
pub(super) fn incident(
    judge: &Judge<'_>,
    item: &Item<'_>,
    beside: &[&str],
    ranks: usize,
    comparison: Option<&RankComparison>,
) -> Incident {
    let card = judge.card(item);
    let sighting = item.sighting;
    let mut found = sighting.found.clone();
    if item.card != sighting.card {
        judge
            .catalogue
            .signatures
            .read_around(item.card, &sighting.context, &mut found);
    }
    let place = own_frame(&sighting.frames);
    if let Some(frame) = place {
        found.insert("python_file".into(), base_name(&frame.file).into());
        found.insert("python_line".into(), frame.line.into());
    }
    if let Some(rank) = judge.rank(item) {
        found.entry("rank").or_insert_with(|| rank.into());
    }
    if let Some(rank) = comparison.and_then(|c| c.odd_rank)
        && judge.rank(item) != Some(rank)
    {
        found.insert("lagging_rank".into(), rank.into());
    }
    let case = Case {
        found: &found,
        comparison: comparison.map(|c| c.sentence.as_str()),
        ..judge.case(item, beside, ranks)
    };
    let causes = causes::weighed(card, &case, &found);
    let needs = needs(card, &case, &found);
    let log = &judge.logs[item.log];
    Incident {
        confidence: card.confidence * if sighting.weak { WEAK_FACTOR } else { 1.0 },
        count: sighting.count,
        time: sighting.time.as_deref().and_then(standard_time),
        log: Some(LogLocation {
            file: log.file.clone(),
            first_line: sighting.first_line,
            last_line: sighting.last_line,
            rank: judge.rank(item),
        }),
        quote: sighting.quote.clone(),
        at: place.map(|frame| at(frame, is_asynchronous(card))),
        needs,
        ..filled(card, &found, causes, script(&sighting.frames))
    }
}

/// Returns the checks that are still open.
fn needs(card: &Card, case: &Case<'_>, found: &FieldMap) -> Vec<String> {
    let is_open = |need: &&CheckHint| {
        let finding = need
            .unless()
            .and_then(|name| evidence::judge(name, card, case));
        finding.is_none_or(|finding| finding == Finding::Silent)
    };
    let open = card.needs.iter().filter(is_open);
    open.filter_map(|need| template::fill(need.says(), found))
        .collect()
}

/// Adds fields from other messages of the same failure. A failed assertion names its kernel; the exception after it
/// contains the error code.
pub(super) fn complete<'i>(
    incident: &mut Incident,
    cause: &Item<'i>,
    others: impl Iterator<Item = &'i Item<'i>>,
) {
    let mut found = FieldMap::new();
    for other in
        others.filter(|other| other.sighting.card == cause.sighting.card && other.log == cause.log)
    {
        for name in [
            "cuda_error",
            "cuda_error_code",
            "source_file",
            "source_line",
            "rank",
            "pid",
        ] {
            if let Some(value) = other.sighting.found.get(name) {
                found.entry(name).or_insert_with(|| value.clone());
            }
        }
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
    fields.pid = fields.pid.or(more.pid);
}

/// Returns an incident with the sentences of its card filled in.
fn filled(card: &Card, found: &FieldMap, causes: Vec<Cause>, script: Option<&str>) -> Incident {
    let known = |texts: &[String]| {
        texts
            .iter()
            .filter_map(|t| template::fill(t, found))
            .collect()
    };
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
        title: text::visible(template::first(&card.titles, found).as_bytes(), 300),
        detected_by: DetectedBy::Log,
        fields: fields::typed(&shown),
        fixes: fixes(card, &causes, found, script),
        causes,
        not_helpful: known(&card.not_helpful),
        references: card.references.clone(),
        headline: card.headline.clone(),
        needs: card
            .needs
            .iter()
            .filter_map(|need| template::fill(need.says(), found))
            .collect(),
        ..Incident::default()
    }
}

/// Returns the fixes: those for likely causes first, without those for causes that are ruled out.
fn fixes(card: &Card, causes: &[Cause], found: &FieldMap, script: Option<&str>) -> Vec<Fix> {
    let verdict = |fix: &FixRule| {
        let cause = fix.r#for.as_ref()?;
        causes.iter().find(|c| c.id == *cause).map(|c| c.verdict)
    };
    let mut rules: Vec<&FixRule> = card
        .fixes
        .iter()
        .filter(|fix| verdict(fix) != Some(Verdict::RuledOut))
        .collect();
    // Causes that are likely without evidence do not change the order of the card.
    let proven = |fix: &FixRule| {
        let cause = fix
            .r#for
            .as_ref()
            .and_then(|id| causes.iter().find(|c| c.id == *id));
        cause.is_some_and(|c| c.verdict == Verdict::Likely && !c.r#for.is_empty())
    };
    rules.sort_by_key(|fix| !proven(fix));
    let fixes = rules.into_iter().filter_map(|fix| {
        Some(Fix {
            title: template::fill(&fix.title, found)?,
            for_cause: fix.r#for.clone(),
            change: for_script(template::fill(&fix.change, found)?, script),
            kind: fix.kind,
            effect: fix
                .effect
                .as_ref()
                .and_then(|effect| template::fill(effect, found)),
            replayed: None,
        })
    });
    let mut different: Vec<Fix> = Vec::new();
    for fix in fixes {
        if different.iter().all(|known| known.change != fix.change) {
            different.push(fix);
        }
    }
    different
}

/// Returns a plain exception as the cause, with the failure that it caused as a consequence.
pub(super) fn program(
    judge: &Judge<'_>,
    log: usize,
    traceback: &Traceback,
    failure: Incident,
) -> Incident {
    let Some(card) = judge.catalogue.card("program-exception") else {
        return failure;
    };
    let mut found = FieldMap::new();
    found.insert("exception".into(), traceback.exception.clone().into());
    found.insert(
        "message".into(),
        text::visible(traceback.message.as_bytes(), 200).into(),
    );
    let place = own_frame(&traceback.frames);
    if let Some(frame) = place {
        found.insert("python_file".into(), base_name(&frame.file).into());
        found.insert("python_line".into(), frame.line.into());
    }
    let rank = traceback.rank.or(judge.logs[log].rank);
    if let Some(rank) = rank {
        found.insert("rank".into(), rank.into());
    }
    let after = &failure.id;
    let who = rank.map_or_else(|| "The program".to_owned(), |rank| format!("Rank {rank}"));
    let mut secondary = vec![Incident {
        secondary: Vec::new(),
        ..failure.clone()
    }];
    secondary.extend(failure.secondary.iter().cloned());
    Incident {
        confidence: card.confidence,
        count: 1,
        time: traceback.time.as_deref().and_then(standard_time),
        log: Some(LogLocation {
            file: judge.logs[log].file.clone(),
            first_line: traceback.first_line,
            last_line: traceback.last_line,
            rank,
        }),
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
        ..filled(card, &found, Vec::new(), script(&traceback.frames))
    }
}

/// Returns the script that was started: the outermost frame, if it is a file of the user.
fn script(frames: &[Frame]) -> Option<&str> {
    let file = base_name(&frames.first().filter(|frame| frame.is_users())?.file);
    file.ends_with(".py").then_some(file)
}

/// Replaces `python train.py` in a fix with the user's script.
fn for_script(change: String, script: Option<&str>) -> String {
    // Unusual names would need quoting and are left alone.
    let is_plain = |name: &&str| {
        name.bytes()
            .all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b))
    };
    match script.filter(is_plain) {
        Some(script) => change.replace("python train.py", &format!("python {script}")),
        None => change,
    }
}

/// Returns the innermost frame in a file of the user. Library frames do not identify the user's script.
fn own_frame(frames: &[Frame]) -> Option<&Frame> {
    frames.iter().rev().find(|frame| frame.is_users())
}

/// Returns true for errors of kernels, which are reported when the program next waits for the GPU.
fn is_asynchronous(card: &Card) -> bool {
    ["launch", "assert"].contains(&card.family.as_str())
}

/// Returns file, line and code of a frame: `train.py:57  loss.backward()`.
fn at(frame: &Frame, is_asynchronous: bool) -> String {
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

/// Returns a time in RFC 3339, or in the same form without a time zone if the log does not contain one.
pub(super) fn standard_time(written: &str) -> Option<String> {
    let text = written.replacen(' ', "T", 1).replace(',', ".");
    if let Ok(time) = text.parse::<jiff::Timestamp>() {
        return Some(time.to_string());
    }
    text.parse::<jiff::civil::DateTime>()
        .ok()
        .map(|time| time.to_string())
}
