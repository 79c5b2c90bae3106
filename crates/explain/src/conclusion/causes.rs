//! Weighs the evidence for and against each possible cause that an error card lists.

use gputop_model::incident::{Cause, Verdict};

use crate::card::{Card, CauseRule, CheckHint, Prior, TextClue};
use crate::evidence::{self, Case, Finding};
use crate::fields::FieldMap;
use crate::signature::Pattern;
use crate::template;

/// Number of hints that together count as evidence.
const DECIDING_HINTS: usize = 2;

/// Returns the causes of `card`, most likely first. Causes with equal weight keep the card's order.
pub(super) fn weighed(card: &Card, case: &Case<'_>, found: &FieldMap) -> Vec<Cause> {
    // Omit causes with neither evidence nor a way to check them, and those that only the log can show.
    let is_shown = |rule: &CauseRule, cause: &Cause| {
        let is_measured = rule.seen.is_empty() || !rule.evidence.is_empty();
        cause.verdict != Verdict::Unknown || (rule.needs.is_some() && is_measured)
    };
    let causes = card.causes.iter().filter_map(|rule| {
        let cause = weigh(rule, card, case, found);
        is_shown(rule, &cause).then_some(cause)
    });
    let mut causes: Vec<Cause> = causes.collect();
    sort(&mut causes);
    causes
}

/// Sorts causes by verdict. A cause that the log supports comes before one that is only likely in general.
fn sort(causes: &mut [Cause]) {
    causes.sort_by_key(|cause| match cause.verdict {
        Verdict::Likely if !cause.r#for.is_empty() => 0,
        Verdict::Likely => 1,
        Verdict::Possible => 2,
        Verdict::Unknown => 3,
        Verdict::RuledOut => 4,
    });
}

/// Lowers `Likely` to `Possible` for a cause that cannot be told apart from another one: it has no evidence of its
/// own, or another cause has the same evidence. The fixes have already been sorted by then.
pub(super) fn lower_unseparated(causes: &mut [Cause]) {
    let is_open = |cause: &Cause| matches!(cause.verdict, Verdict::Likely | Verdict::Possible);
    let evidence: Vec<Vec<String>> =
        causes.iter().filter(|cause| is_open(cause)).map(|cause| cause.r#for.clone()).collect();
    for cause in causes.iter_mut().filter(|cause| cause.verdict == Verdict::Likely) {
        let same = evidence.iter().filter(|other| **other == cause.r#for).count();
        if evidence.len() > 1 && (cause.r#for.is_empty() || same > 1) {
            cause.verdict = Verdict::Possible;
        }
    }
    sort(causes);
}

/// Returns true unless the evidence has made a check unnecessary.
pub(super) fn is_open(need: &CheckHint, card: &Card, case: &Case<'_>) -> bool {
    need.unless().and_then(|name| evidence::evaluate(name, card, case)).is_none()
}

fn weigh(rule: &CauseRule, card: &Card, case: &Case<'_>, found: &FieldMap) -> Cause {
    let (mut speaks_for, mut hints) = text_evidence(&rule.seen, case, found);
    let (mut speaks_against, mut hints_against) = text_evidence(&rule.denied, case, found);
    for name in &rule.evidence {
        match evidence::evaluate(name, card, case) {
            Some(Finding::For(clause)) => speaks_for.push(clause),
            Some(Finding::Hint(clause)) => hints.push(clause),
            Some(Finding::Against(clause)) => speaks_against.push(clause),
            _ => {}
        }
    }
    for name in &rule.against {
        if let Some(Finding::For(clause)) = evidence::evaluate(name, card, case) {
            speaks_against.push(clause);
        }
    }
    for (list, hints) in [(&mut speaks_for, &mut hints), (&mut speaks_against, &mut hints_against)]
    {
        if hints.len() >= DECIDING_HINTS {
            list.append(hints);
        }
        list.retain(|clause| !clause.is_empty());
        list.dedup();
    }
    let is_only_hinted = speaks_for.is_empty() && !hints.is_empty();
    speaks_for.append(&mut hints);
    let verdict = match (speaks_for.is_empty(), speaks_against.is_empty()) {
        // A cause that is likely even without evidence remains `Likely`, because hints must not lower the verdict.
        _ if is_only_hinted && (rule.prior, speaks_against.is_empty()) == (Prior::Likely, true) => {
            Verdict::Likely
        }
        // A hint does not outweigh evidence against the cause.
        _ if is_only_hinted && speaks_against.is_empty() => Verdict::Possible,
        _ if is_only_hinted => Verdict::RuledOut,
        (false, true) => Verdict::Likely,
        (false, false) => Verdict::Possible,
        (true, false) => Verdict::RuledOut,
        (true, true) => match rule.prior {
            Prior::Likely => Verdict::Likely,
            Prior::Possible => Verdict::Possible,
            Prior::Unknown => Verdict::Unknown,
        },
    };
    let is_unsure = matches!(verdict, Verdict::Possible | Verdict::Unknown);
    let needs = rule.needs.as_ref().filter(|need| is_unsure && is_open(need, card, case));
    Cause {
        id: rule.id.clone(),
        title: template::fill(&rule.title, found).unwrap_or_else(|| rule.title.clone()),
        verdict,
        r#for: speaks_for,
        against: speaks_against,
        needs: needs.map(|need| need.says().to_owned()),
    }
}

/// Returns the phrase of each clue whose expression matches the log, with the matched text filled in. Clues that only
/// suggest something are in the second list.
fn text_evidence(
    seen: &[TextClue],
    case: &Case<'_>,
    found: &FieldMap,
) -> (Vec<String>, Vec<String>) {
    let clause = |one: &TextClue| {
        let pattern = Pattern::new(&one.r#match);
        let code = case.frames.iter().filter_map(|frame| frame.code.as_deref());
        let mut code = code.filter(|_| one.in_code);
        let in_text = pattern.groups(case.context);
        let mut all = in_text.or_else(|| code.find_map(|line| pattern.groups(line)))?;
        for (name, value) in found {
            all.entry(name).or_insert_with(|| value.clone());
        }
        template::fill(&one.says, &all)
    };
    let clauses =
        |is_hint: bool| seen.iter().filter(|one| one.hint == is_hint).filter_map(clause).collect();
    (clauses(false), clauses(true))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalogue::Catalogue;
    use crate::explain;
    use crate::tables::Tables;

    fn likely(id: &str, evidence: &[&str]) -> Cause {
        let evidence = evidence.iter().map(|&one| one.to_owned()).collect();
        Cause { id: id.into(), verdict: Verdict::Likely, r#for: evidence, ..Cause::default() }
    }

    #[test]
    fn a_cause_is_likely_only_with_evidence_that_no_other_cause_has() {
        let mut causes = [
            likely("none", &[]),
            likely("shared", &["a"]),
            likely("too", &["a"]),
            likely("own", &["b"]),
        ];
        lower_unseparated(&mut causes);
        let verdicts = causes.iter().map(|cause| (cause.id.as_str(), cause.verdict));
        let possible = Verdict::Possible;
        assert_eq!(
            verdicts.collect::<Vec<_>>(),
            [("own", Verdict::Likely), ("none", possible), ("shared", possible), ("too", possible)]
        );
    }

    #[test]
    fn a_hint_does_not_outweigh_evidence_against_a_cause() {
        const CARD: &str = r#"+++
id = "card"
family = "launch"
headline = "FAILED"
titles = ["It failed."]

[[signature]]
match = 'CUDA error: it failed'

[[cause]]
id = "mig"
title = "The MIG instance is too small"
seen = [{ match = 'MIG', says = "the log mentions MIG", hint = true }]
denied = [{ match = 'MIG M. +Disabled', says = "MIG is off" }]

[[fix]]
title = "Use a larger instance"
change = "nvidia-smi mig -lgip"
kind = "command"
for = "mig"

[[fix]]
title = "List the GPUs"
change = "nvidia-smi -L"
kind = "command"
+++
"#;
        let (catalogue, _) = Catalogue::read([("card", CARD)].into_iter(), Tables::default());
        let log = b"MIG M.  Disabled\nRuntimeError: CUDA error: it failed\n";
        let incident = explain(&catalogue, "log", log).remove(0);
        assert_eq!(incident.causes[0].verdict, Verdict::RuledOut);
        let fixes: Vec<&str> = incident.fixes.iter().map(|fix| fix.change.as_str()).collect();
        assert_eq!(fixes, ["nvidia-smi -L"]);
    }

    #[test]
    fn the_only_open_cause_stays_likely() {
        let excluded = Cause { verdict: Verdict::RuledOut, ..likely("excluded", &[]) };
        let mut causes = [likely("only", &[]), excluded];
        lower_unseparated(&mut causes);
        assert_eq!(causes[0].verdict, Verdict::Likely);
    }
}
