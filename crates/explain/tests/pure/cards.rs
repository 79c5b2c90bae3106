//! Error cards: every card parses, matches its examples first and does not match its counterexamples.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use gputop_explain::card_check;
use gputop_explain::catalogue::Catalogue;
use gputop_explain::explain;
use gputop_explain::tables::Tables;
use gputop_explain::workload::{Kind, WorkloadAction, Workloads, warning};
use gputop_model::incident::Incident;

static ANSWERS: LazyLock<Vec<(&str, Vec<Incident>)>> = LazyLock::new(|| {
    let catalogue = Catalogue::embedded();
    let examples = catalogue.cards.iter().flat_map(|card| &card.examples);
    let answer = |text: &'static str| (text, explain(catalogue, "train.log", text.as_bytes()));
    examples.map(|example| answer(&example.text)).collect()
});

/// Returns the text of each example of all cards, and the incidents found in it.
fn answers() -> &'static [(&'static str, Vec<Incident>)] {
    &ANSWERS
}

fn assets() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("assets")
}

fn files() -> Vec<(String, String)> {
    let mut files: Vec<(String, String)> = fs::read_dir(assets().join("cards"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .map(|path| {
            let id = path.file_stem().unwrap().to_string_lossy().into_owned();
            (id, fs::read_to_string(&path).unwrap())
        })
        .collect();
    files.sort();
    files
}

#[test]
fn every_card_explains_its_own_examples() {
    let tables = Catalogue::embedded().tables.clone();
    let errors = card_check::check(&files(), tables);
    assert!(errors.is_empty(), "{}", errors.join("\n"));
}

#[test]
fn reports_errors_in_cards() {
    let card = |body: &str| {
        let text = format!(
            "+++\nid = \"x\"\nfamily = \"x\"\nheadline = \"X\"\ntitles = [\"It is x.\"]\n{body}\n\
             [[fix]]\ntitle = \"do\"\nchange = \"x\"\nkind = \"code\"\n+++\nText.\n"
        );
        card_check::check(&[("x".to_owned(), text)], Tables::default())
    };
    let example = "[[example]]\ntext = 'CUDA error: 7'\nfields = { number = \"7\" }\n";
    let good = format!("[[signature]]\nmatch = 'CUDA error: (?<number>\\d)'\n{example}");
    assert_eq!(card(&good), [""; 0]);
    let reports = |body: &str, expected: &str| {
        let errors = card(body).join("\n");
        assert!(errors.contains(expected), "{errors}");
    };
    reports("colour = \"red\"", "unknown field `colour`");
    reports("[[signature]]\nmatch = '('", "unclosed group");
    reports("when = [\"the-moon\"]", "unknown evidence: the-moon");
    reports("shares = \"y\"", "unknown card y");
    reports(example, "no card matches");
    reports("[[example]]\ntext = 'hello'", "contains no anchor");
    let other = good.replace("\"7\"", "\"8\"");
    reports(&other, "number is \"7\", not \"8\"");
    let matching = format!("{good}[[counterexample]]\ntext = 'CUDA error: 8'");
    reports(&matching, "counterexample 1 matches the card");
}

#[test]
fn tables_name_existing_cards() {
    let catalogue = Catalogue::embedded();
    assert!(catalogue.cards.len() >= 70, "{}", catalogue.cards.len());
    assert_eq!(catalogue.cards.len(), files().len());
    let tables = &catalogue.tables;
    assert!(tables.assertions.len() > 30 && tables.xids.len() > 30);
    let named = tables.assertions.iter().map(|row| &row.card);
    for card in named.chain(tables.xids.iter().map(|row| &row.card)) {
        assert!(catalogue.card(card).is_some(), "unknown card {card}");
    }
    for code in [8, 13, 31, 43, 45, 48, 61, 63, 64, 74, 79, 92, 94, 95, 119, 140, 149, 154] {
        assert!(tables.xid(code).is_some(), "Xid {code}");
    }
}

#[test]
fn the_first_fix_never_affects_other_programs() {
    for (_, incidents) in answers() {
        for incident in incidents {
            let first = incident.fixes.first();
            let warning = first.and_then(|fix| warning(&fix.change));
            assert_eq!(warning, None, "{}: {:?}", incident.id, first);
        }
    }
}

/// A workload knows the flags of its program. Cards name remedies instead.
#[test]
fn no_card_contains_flags_of_an_inference_server() {
    let is_flag = |word: &&str| word.starts_with("--") && word.len() > 6;
    let workloads = &Workloads::embedded().all;
    for card in &Catalogue::embedded().cards {
        for workload in workloads.iter().filter(|w| w.kind == Kind::Server) {
            let changes = workload.actions.values().map(WorkloadAction::change);
            let changes = changes.filter(|change| !change.starts_with("pip "));
            for flag in changes.flat_map(|change| change.split(' ').filter(is_flag)) {
                for fix in &card.fixes {
                    let words = fix.change.split([' ', '=']);
                    let is_own = card.workload.as_ref() == Some(&workload.id);
                    assert!(
                        is_own || flag == "--model-path" || !words.into_iter().any(|w| w == flag),
                        "{}: {flag} of {} in {}",
                        card.id,
                        workload.name,
                        fix.change
                    );
                }
            }
        }
    }
}

#[test]
fn card_texts_keep_their_limits() {
    for card in &Catalogue::embedded().cards {
        let id = &card.id;
        assert!(card.titles.iter().all(|t| t.chars().count() <= 140), "{id}: a title is too long");
        assert!(
            card.headline.chars().count() <= 28 && card.headline.to_uppercase() == card.headline,
            "{id}: {}",
            card.headline
        );
        for fix in &card.fixes {
            assert!(
                !fix.change.ends_with('.') || fix.change.ends_with(" ."),
                "{id}: {:?} will be copied with its period",
                fix.change
            );
            assert!(!fix.title.ends_with('.'), "{id}: {:?}", fix.title);
        }
        for reference in &card.references {
            assert!(reference.url.starts_with("https://"), "{id}: {}", reference.url);
        }
    }
}

/// A check that quotes a log line is useless if the log has that line.
#[test]
fn checks_do_not_ask_for_lines_of_the_log() {
    for (weights, cache) in [
        ("Model loading took 61.2500 GiB and 40.1 seconds", "Available KV cache memory: -2.50 GiB"),
        (
            "Model loading took 61.25 GiB memory and 40.1 seconds",
            "Available KV cache memory: 0.00 GiB",
        ),
        (
            "Loading model weights took 61.2500 GB",
            "model weights take 61.25GiB; the rest of the memory reserved for KV Cache is -2.50GiB.",
        ),
    ] {
        let log = format!(
            "INFO 11-20 10:00:30 [gpu_model_runner.py:1347] {weights}\nINFO 11-20 10:00:50 [gpu_worker.py:227] {cache}\nERROR 11-20 10:00:51 [core.py:396] ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when initializing the engine.\n"
        );
        let found = explain(Catalogue::embedded(), "x.log", log.as_bytes()).remove(0);
        assert_eq!(found.id, "vllm-no-kv-cache-memory");
        assert_eq!(found.needs, Vec::<String>::new(), "{log}");
        let evidence = found.causes.iter().flat_map(|cause| &cause.r#for);
        assert!(evidence.into_iter().any(|one| one.contains("61.25")), "{:#?}", found.causes);
    }
    let mut asked = Vec::new();
    for (example, incidents) in answers() {
        for found in incidents {
            let of_causes = found.causes.iter().filter_map(|cause| cause.needs.as_ref());
            for check in found.needs.iter().chain(of_causes) {
                let mut quoted = check.split('`').skip(1).step_by(2);
                let is_line = (check.contains(" line") || check.contains(" log"))
                    && !check.contains("in the message");
                let is_there = |words: &str| words.contains(' ') && example.contains(words);
                if is_line && quoted.any(is_there) {
                    asked.push(format!("{}: {check}", found.id));
                }
            }
        }
    }
    assert_eq!(asked, Vec::<String>::new());
}
