use std::collections::BTreeSet;
use std::sync::LazyLock;

use super::*;
use crate::catalogue::Catalogue;
use crate::signature::Pattern;
use crate::workload::{WorkloadAction, Workloads};

#[test]
fn a_fix_that_does_not_stop_growth_only_delays_the_failure() {
    let log = "Traceback (most recent call last):\n  File \"/home/ana/train.py\", line 9, in <module>\n    losses.append(model(batch).loss)\ntorch.OutOfMemoryError: CUDA out of memory. Tried to allocate 512.00 MiB. GPU 0 has a total capacity of 23.69 GiB of which 0.30 GiB is free. Process 7 has 23.30 GiB memory in use. Of the allocated memory 22.80 GiB is allocated by PyTorch, and 0.10 GiB is reserved by PyTorch but unallocated.\n";
    let incident = crate::explain(Catalogue::embedded(), "log", log.as_bytes()).remove(0);
    let is_delay = |fix: &&Fix| fix.effect.as_ref().is_some_and(|e| e.contains(DELAYS));
    let first = incident.fixes.first().filter(is_delay);
    assert_eq!(first, None, "{:#?}", incident.fixes);
    assert!(incident.fixes.iter().any(|fix| is_delay(&fix)), "{:#?}", incident.fixes);
    let other = log.replace("losses.append(model(batch).loss)", "model(batch)");
    let other = crate::explain(Catalogue::embedded(), "log", other.as_bytes()).remove(0);
    assert!(!other.fixes.iter().any(|fix| is_delay(&fix)), "{:#?}", other.fixes);
}

#[test]
fn no_allocator_setting_stops_growth() {
    let fixes = Catalogue::embedded().cards.iter().flat_map(|card| &card.fixes);
    let settings: Vec<_> = fixes
        .filter(|fix| {
            fix.change.contains("ALLOC_CONF=")
                || fix.remedy.as_deref() == Some("expandable_segments")
        })
        .collect();
    assert!(settings.len() > 10 && settings.iter().all(|fix| only_makes_room(fix)));
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
    let actions =
        workloads.flat_map(|workload| workload.actions.values().map(WorkloadAction::change));
    let all = changes.chain(actions).collect::<Vec<_>>().join("\n") + "LOG";
    let unused = known.keys().filter(|word| !all.contains(*word));
    assert_eq!(unused.collect::<Vec<_>>(), Vec::<&String>::new());
}
