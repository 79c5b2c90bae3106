//! Chooses the fixes of an incident, and adapts its advice to the program that failed.

use super::card::{Card, FixRule};
use super::evidence::{self, Case};
use super::fields::FieldMap;
use super::workload::{self, Setting};
use crate::model::incident::{Cause, Fix, Incident, Verdict};

/// Returns `incident` with its causes and fixes. Advice that makes no sense for the program is left out.
pub(super) fn adapted(
    incident: Incident,
    card: &Card,
    causes: Vec<Cause>,
    found: &FieldMap,
    setting: &Setting<'_>,
    case: Option<&Case<'_>>,
    script: Option<&str>,
) -> Incident {
    let holds = |conditions: &[String]| {
        let mut conditions = conditions.iter();
        conditions.all(|one| case.is_some_and(|case| evidence::holds(one, card, case)))
    };
    let applies = |cause: &Cause| {
        let mut rules = card.causes.iter();
        let rule = rules.find(|rule| rule.id == cause.id);
        rule.is_none_or(|rule| setting.is_for(&rule.only) && holds(&rule.when))
    };
    let mut excluded = Vec::new();
    let causes = causes.into_iter().filter_map(|cause| {
        let title = setting.adapted(&cause.title).filter(|_| applies(&cause));
        let Some(title) = title else {
            excluded.push(cause.id);
            return None;
        };
        Some(Cause {
            title,
            needs: cause.needs.and_then(|needs| setting.adapted(&needs)),
            ..cause
        })
    });
    let causes: Vec<Cause> = causes.collect();
    let is_excluded = |fix: &FixRule| fix.r#for.as_ref().is_some_and(|id| excluded.contains(id));
    let rules = card.fixes.iter();
    let rules = rules.filter(|fix| holds(&fix.when) && !is_excluded(fix));
    let fixes = fixes(rules.collect(), &causes, found, setting, script);
    let adapted = |texts: Vec<String>| {
        let texts = texts.into_iter();
        texts.filter_map(|text| setting.adapted(&text)).collect()
    };
    let title = setting.adapted(&incident.title);
    Incident {
        title: title.unwrap_or(incident.title),
        fixes,
        causes,
        needs: adapted(incident.needs),
        not_helpful: adapted(incident.not_helpful),
        ..incident
    }
}

/// Returns the fixes: those for likely causes first, without those for causes that are ruled out. The first one never
/// affects other programs.
fn fixes(
    mut rules: Vec<&FixRule>,
    causes: &[Cause],
    found: &FieldMap,
    setting: &Setting<'_>,
    script: Option<&str>,
) -> Vec<Fix> {
    let cause = |fix: &FixRule| {
        let id = fix.r#for.as_ref()?;
        causes.iter().find(|cause| cause.id == *id)
    };
    rules.retain(|fix| cause(fix).is_none_or(|cause| cause.verdict != Verdict::RuledOut));
    // Causes that are likely without evidence do not change the card's order of fixes.
    let is_proven = |cause: &Cause| cause.verdict == Verdict::Likely && !cause.r#for.is_empty();
    rules.retain(|fix| !fix.proven || cause(fix).is_some_and(is_proven));
    // Evidence does not advance a command that affects other programs.
    let is_first = |fix: &FixRule| {
        workload::warning(&fix.change).is_none()
            && (cause(fix).is_some_and(is_proven) || setting.is_of_surroundings(fix))
    };
    rules.sort_by_key(|fix| !is_first(fix));
    let mut fixes: Vec<Fix> = Vec::new();
    for mut fix in rules
        .into_iter()
        .filter_map(|rule| setting.fix(rule, found))
    {
        fix.change = for_script(fix.change, script);
        if !fixes.iter().any(|known| known.change == fix.change) {
            fixes.push(fix);
        }
    }
    let harmless = fixes
        .iter()
        .position(|fix| workload::warning(&fix.change).is_none());
    if let Some(first) = harmless {
        fixes[..=first].rotate_right(1);
    }
    fixes
}

/// Replaces `python train.py` in a fix with the user's script.
fn for_script(change: String, script: Option<&str>) -> String {
    // Unusual names would need quoting, so such fixes stay unchanged.
    let is_plain = |name: &&str| {
        name.bytes()
            .all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b))
    };
    match script.filter(is_plain) {
        Some(script) => change.replace(workload::SCRIPT, &format!("python {script}")),
        None => change,
    }
}
