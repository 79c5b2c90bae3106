//! Chooses the fixes for an incident, and adapts them to the program that failed.

use gputop_model::incident::{Cause, Fix, Incident, Verdict};

use super::card::{Card, FixRule};
use super::evidence::{self, Case};
use super::fields::FieldMap;
use super::workload::{self, Setting};

/// Remedies to offer if none of the card's fixes applies to the program. At least the last one applies to every
/// program.
const LAST_RESORTS: &[&str] = &["more_output", "update", "report"];

/// Returns `incident` with its causes and fixes. Omits advice that does not fit the program.
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
        conditions.iter().all(|one| case.is_some_and(|case| evidence::holds(one, card, case)))
    };
    let applies = |cause: &Cause| {
        let rule = card.causes.iter().find(|rule| rule.id == cause.id);
        rule.is_none_or(|rule| setting.is_for(&rule.only) && holds(&rule.when))
    };
    let mut excluded = Vec::new();
    let causes = causes.into_iter().filter_map(|cause| {
        let title = setting.adapted(&cause.title).filter(|_| applies(&cause));
        let Some(title) = title else {
            excluded.push(cause.id);
            return None;
        };
        Some(Cause { title, needs: cause.needs.and_then(|needs| setting.adapted(&needs)), ..cause })
    });
    let causes: Vec<Cause> = causes.collect();
    let is_excluded = |fix: &FixRule| fix.r#for.as_ref().is_some_and(|id| excluded.contains(id));
    let rules = card.fixes.iter().filter(|fix| holds(&fix.when) && !is_excluded(fix));
    let fixes = fixes(rules.collect(), &causes, found, setting, script);
    let adapted =
        |texts: Vec<String>| texts.into_iter().filter_map(|text| setting.adapted(&text)).collect();
    let mut not_helpful: Vec<String> = adapted(incident.not_helpful);
    not_helpful.retain(|line| !is_recommended(line, &fixes));
    let title = setting.adapted(&incident.title);
    Incident {
        title: title.unwrap_or(incident.title),
        fixes,
        causes,
        needs: adapted(incident.needs),
        not_helpful,
        ..incident
    }
}

/// Returns true if a fix recommends a setting or call that a line such as `SETTING, CALL(): reason` advises against.
fn is_recommended(line: &str, fixes: &[Fix]) -> bool {
    let Some((items, _)) = line.split_once(": ") else { return false };
    items.split(", ").any(|item| fixes.iter().any(|fix| fix.change.contains(item)))
}

/// Causes that make allocated memory grow until it is full.
const GROWTH_CAUSES: [&str; 3] = ["leak", "grew-too", "concatenation"];
const DELAYS: &str = "only delays the failure while allocated memory keeps growing";

/// Returns true if a fix leaves more memory free, but does not stop growth.
fn only_makes_room(fix: &FixRule) -> bool {
    const REMEDIES: [&str; 6] = [
        "expandable_segments",
        "smaller_batch",
        "smaller_input",
        "accumulate_gradients",
        "mixed_precision",
        "checkpoint_activations",
    ];
    fix.remedy.as_deref().is_some_and(|remedy| REMEDIES.contains(&remedy))
        || fix.change.contains("ALLOC_CONF=")
}

/// Returns the fixes for an incident. Fixes for likely causes come first, and fixes for ruled-out causes are omitted.
/// The first fix never affects other programs.
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
    // Fixes for causes that are likely even without evidence keep the card's order.
    let is_proven = |cause: &Cause| cause.verdict == Verdict::Likely && !cause.r#for.is_empty();
    rules.retain(|fix| !fix.proven || cause(fix).is_some_and(is_proven));
    // A command that affects other programs is not moved to the front, whatever the evidence.
    let is_first = |fix: &FixRule| {
        workload::warning(&fix.change).is_none()
            && (cause(fix).is_some_and(is_proven) || setting.is_of_surroundings(fix))
    };
    rules.sort_by_key(|fix| !is_first(fix));
    let grows = |cause: &Cause| GROWTH_CAUSES.contains(&cause.id.as_str()) && is_proven(cause);
    let is_growing = causes.iter().any(grows);
    let mut fixes: Vec<Fix> = Vec::new();
    let known = rules.into_iter().filter_map(|rule| Some((rule, setting.fix(rule, found)?)));
    for (rule, mut fix) in known {
        let is_for_growth = cause(rule).is_some_and(grows);
        if is_growing && !is_for_growth && only_makes_room(rule) {
            let effect = fix.effect.take().map_or_else(String::new, |effect| format!("; {effect}"));
            fix.effect = Some(format!("{DELAYS}{effect}"));
        }
        fix.change = for_script(fix.change, script, setting);
        if setting.is_in_use(&fix.change) {
            continue;
        }
        if !fix.change.is_empty() && !fixes.iter().any(|known| known.change == fix.change) {
            fixes.push(fix);
        }
    }
    if fixes.is_empty() {
        let rules = LAST_RESORTS
            .iter()
            .map(|name| FixRule { remedy: Some((*name).to_owned()), ..FixRule::default() });
        fixes.extend(rules.filter_map(|rule| setting.fix(&rule, found)));
    }
    let harmless = fixes.iter().position(|fix| workload::warning(&fix.change).is_none());
    if let Some(first) = harmless {
        fixes[..=first].rotate_right(1);
    }
    fixes
}

/// The process of the user's script in the fix of a card.
const PROCESS: &str = "$(pgrep -nf train.py)";

/// Replaces `python train.py` in a fix with the user's script, and the search for its process with a placeholder if the script is
/// unknown.
fn for_script(change: String, script: Option<&str>, setting: &Setting<'_>) -> String {
    // Leave fixes unchanged if the script's name contains characters that would need quoting.
    let is_plain =
        |name: &&str| name.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b));
    match script.filter(is_plain) {
        Some(script) => change
            .replace(workload::SCRIPT, &format!("python {script}"))
            .replace(PROCESS, &format!("$(pgrep -nf {script})")),
        None => change.replace(workload::SCRIPT, setting.usual_command()).replace(PROCESS, "PID"),
    }
}

#[cfg(test)]
mod tests;
