//! Chooses the fixes for an incident, and adapts them to the program that failed.

use super::card::{Card, FixRule};
use super::evidence::{self, Case};
use super::fields::FieldMap;
use super::workload::{self, Setting};
use crate::model::incident::{Cause, Fix, Incident, Verdict};

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
        Some(Cause { title, needs: cause.needs.and_then(|needs| setting.adapted(&needs)), ..cause })
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
    let mut items = items.split(", ");
    items.any(|item| fixes.iter().any(|fix| fix.change.contains(item)))
}

/// Causes that make allocated memory grow until it is full.
const GROWTH_CAUSES: [&str; 3] = ["leak", "grew-too", "concatenation"];
const DELAYS: &str = "only delays the failure while allocated memory keeps growing";

/// Returns true if a fix leaves more memory free, but does not stop growth.
fn only_makes_room(fix: &FixRule) -> bool {
    const REMEDIES: [&str; 5] = [
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
mod tests {
    use std::collections::BTreeSet;
    use std::sync::LazyLock;

    use super::*;
    use crate::diagnose::catalogue::Catalogue;
    use crate::diagnose::signature::Pattern;
    use crate::diagnose::workload::{Action, Workloads};

    #[test]
    fn a_fix_that_does_not_stop_growth_only_delays_the_failure() {
        let log = "Traceback (most recent call last):\n  File \"/home/ana/train.py\", line 9, in <module>\n    losses.append(model(batch).loss)\ntorch.OutOfMemoryError: CUDA out of memory. Tried to allocate 512.00 MiB. GPU 0 has a total capacity of 23.69 GiB of which 0.30 GiB is free. Process 7 has 23.30 GiB memory in use. Of the allocated memory 22.80 GiB is allocated by PyTorch, and 0.10 GiB is reserved by PyTorch but unallocated.\n";
        let incident =
            crate::diagnose::explain(Catalogue::embedded(), "log", log.as_bytes()).remove(0);
        let is_delay = |fix: &&Fix| fix.effect.as_ref().is_some_and(|e| e.contains(DELAYS));
        let first = incident.fixes.first().filter(is_delay);
        assert_eq!(first, None, "{:#?}", incident.fixes);
        assert!(incident.fixes.iter().any(|fix| is_delay(&fix)), "{:#?}", incident.fixes);
        let other = log.replace("losses.append(model(batch).loss)", "model(batch)");
        let other =
            crate::diagnose::explain(Catalogue::embedded(), "log", other.as_bytes()).remove(0);
        assert!(!other.fixes.iter().any(|fix| is_delay(&fix)), "{:#?}", other.fixes);
    }

    type AllFixes = Vec<(String, Vec<Fix>)>;

    static WITH_CAUSES: LazyLock<AllFixes> = LazyLock::new(|| all_fixes(true));

    /// Returns the fixes of every card for every workload, with the IDs of the card and the workload. Placeholders for
    /// fields are not filled in. If `with_causes` is true, all causes of the card are treated as likely.
    fn all_fixes(with_causes: bool) -> AllFixes {
        let mut all = Vec::new();
        for card in &Catalogue::embedded().cards {
            let causes = card.causes.iter().filter(|_| with_causes);
            let causes: Vec<Cause> = causes
                .map(|rule| Cause {
                    id: rule.id.clone(),
                    verdict: Verdict::Likely,
                    r#for: vec!["evidence".to_owned()],
                    ..Cause::default()
                })
                .collect();
            for workload in &Workloads::embedded().all {
                let setting = Setting::of(workload);
                let rules = card.fixes.iter().filter(|fix| fix.when.is_empty());
                let fixes = fixes(rules.collect(), &causes, &FieldMap::new(), &setting, None);
                all.push((format!("{} for {}", card.id, workload.id), fixes));
            }
        }
        all
    }

    #[test]
    fn every_card_has_a_fix_for_every_workload() {
        for (place, fixes) in all_fixes(false).iter().chain(&*WITH_CAUSES) {
            assert!(!fixes.is_empty(), "{place}: no fix");
            for fix in fixes {
                assert!(!fix.change.trim().is_empty(), "{place}: {fix:?}");
                assert!(!fix.title.is_empty(), "{place}: {fix:?}");
                // Check that each title makes sense on its own, because the order of fixes depends on the evidence.
                assert!(!fix.title.starts_with("Or "), "{place}: {fix:?}");
            }
        }
    }

    /// Checks that no fix contains a value from one specific machine (interface, GPU, address, file) that users could
    /// mistake for their own.
    #[test]
    fn fixes_contain_no_values_of_another_machine() {
        let constant = Pattern::new(concat!(
            r"\b(?:eth|eno|ens|enp|ib)\d|VISIBLE_DEVICES=\d|nvidia-smi [^\n]*-i \d|cuda:\d|/dev/nvidia\d",
            r"|\b\d{1,3}(?:\.\d{1,3}){3}\b|--resume\b|[\w-]+\.(?:py|log|sh|json|yaml|safetensors|so)\b",
            r"|(?:-np|-ntasks-per-node|-nnodes|mpirun -n)[= ]\d|nproc[-_]per[-_]node[= ]\d"
        ));
        // Allowed file names: the program's own files, files present on every host, files created by the command, and
        // the placeholder for the user's script.
        const OWN_FILES: &[&str] = &[
            "train.py",
            "YOUR_SCRIPT.py",
            "python server.py",
            "update_wizard_linux.sh",
            "main.py",
            "launch.py",
            "run.log",
            "server.log",
            "control.log",
            "nv-hostengine.log",
            "CMakeError.log",
            "CMakeConfigureLog.yaml",
            "nvidia-bug-report.sh",
            "install.sh",
            "start.sh",
            "--sim_device cuda:0",
            "libcuda.so",
            "--nproc_per_node=1",
            "--nproc-per-node 1",
            "task-%t.log",
            "/etc/cdi/nvidia.yaml",
            "libnvidia-opencl.so.1",
            "kernel.log",
            ".docker/config.json",
            ".dockerconfigjson",
            "cufile.log",
            "cuda-installer.log",
            "nvidia-installer.log",
            "MODEL/config.json",
            "MODEL config.json",
            "model.safetensors",
            "pretrain_gpt.py",
            // The address by which every host names itself.
            "127.0.0.1",
        ];
        let mut unmarked = BTreeSet::new();
        for (_, fixes) in &*WITH_CAUSES {
            for fix in fixes {
                let parts = OWN_FILES.iter();
                let change = parts.fold(fix.change.clone(), |text, own| text.replace(own, ""));
                let texts = [Some(&fix.title), fix.effect.as_ref()];
                let is_example = texts.iter().flatten().any(|text| text.contains("example"));
                if !is_example && constant.is_in(&change) {
                    unmarked.insert(&fix.change);
                }
            }
        }
        // Every specific value must be marked as an example.
        assert_eq!(unmarked, BTreeSet::<&String>::new());
    }

    #[test]
    fn placeholders_for_unknown_values_are_explained() {
        let is_word = |word: &&str| {
            let is_capital = |c: char| c.is_ascii_uppercase() || c == '_';
            word.len() > 2 && word.chars().all(is_capital) && !word.starts_with('_')
        };
        let known = Workloads::embedded().placeholders();
        for (place, fixes) in &*WITH_CAUSES {
            for fix in fixes {
                let words = fix.change.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
                for word in words.filter(is_word).filter(|word| known.contains_key(*word)) {
                    let effect = fix.effect.as_deref().unwrap_or_default();
                    assert!(effect.contains(word), "{place}: {fix:?}");
                }
            }
        }
        let cards = Catalogue::embedded().cards.iter();
        let changes = cards.flat_map(|card| card.fixes.iter().map(|fix| fix.change.as_str()));
        let workloads = Workloads::embedded().all.iter();
        let actions = workloads.flat_map(|workload| workload.actions.values().map(Action::change));
        let all = changes.chain(actions).collect::<Vec<_>>().join("\n") + "LOG";
        let unused = known.keys().filter(|word| !all.contains(*word));
        assert_eq!(unused.collect::<Vec<_>>(), Vec::<&String>::new());
    }
}
