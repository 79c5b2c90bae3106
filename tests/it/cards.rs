//! Error cards: every card parses, matches its examples first and does not match its counterexamples.

use std::fs;
use std::path::{Path, PathBuf};

use assert_cmd::Command;
use gputop::diagnose::card_check;
use gputop::diagnose::catalogue::Catalogue;
use gputop::diagnose::evidence::Measured;
use gputop::diagnose::tables::Tables;
use gputop::diagnose::workload::{Action, Kind, Workloads, warning};
use gputop::diagnose::{LogReader, diagnose};
use gputop::export::explanation::{Detail, Style, text};

use crate::support::answers::answers;

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

/// `gputop run` prints the explanation into the log that it explains.
#[test]
fn quotes_in_an_explanation_are_not_failures() {
    let catalogue = Catalogue::embedded();
    let read = |log: &str| {
        let mut reader = LogReader::new(catalogue, "train.log");
        reader.push(log.as_bytes());
        diagnose(catalogue, &[reader.finish()], &Measured::default())
    };
    let mut explained = 0;
    let examples = catalogue.cards.iter().flat_map(|card| &card.examples);
    // Diagnosing takes longest, so each example is wrapped to one of the widths.
    for (example, width) in examples.zip([60, 80, 200].into_iter().cycle()) {
        let log = format!("step 1\n{}\n", example.text.trim_end());
        let incidents = read(&log);
        let style = Style { width, colour: false, height: None };
        let explanation = text(&incidents, Detail::Full, &style);
        explained += usize::from(!explanation.is_empty());
        let both = format!("{log}\n{explanation}");
        assert_eq!(read(&both), incidents, "{width}: {both}");
        // A reader that starts late reads only the explanation.
        assert_eq!(read(&explanation), [], "{width}: {explanation}");
    }
    assert!(explained > 100, "{explained}");
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
    reports("[[example]]\ntext = 'hello'", "none of scan::ANCHORS");
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
            let changes = workload.actions.values().map(Action::change);
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

fn cards(args: &[&str]) -> (Option<i32>, String, String) {
    let output = Command::cargo_bin("gputop").unwrap().arg("cards").args(args).output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (output.status.code(), text(output.stdout), text(output.stderr))
}

#[test]
fn lists_shows_and_finds_cards() {
    let (code, all, _) = cards(&[]);
    assert_eq!(code, Some(0));
    for card in &Catalogue::embedded().cards {
        assert!(all.contains(&card.id), "{} is not listed", card.id);
    }
    let (code, one, _) = cards(&["oom-fragmentation"]);
    assert_eq!(code, Some(0));
    assert!(one.contains("expandable_segments:True"), "{one}");
    // Cards are found by number, alias or error text.
    assert!(cards(&["31"]).1.contains("xid-31-mmu-fault"));
    assert!(cards(&["Xid 79"]).1.contains("xid-79-off-bus"));
    assert!(cards(&["INTERNAL ASSET FAILED"]).1.contains("internal-assert-torch"));
    assert!(cards(&["embedding"]).1.contains("assert-embedding-range"));
    let (code, out, err) = cards(&["harpsichord"]);
    assert_eq!((code, out.as_str()), (Some(1), ""));
    assert!(err.contains("harpsichord") && err.contains("gputop cards"), "{err}");
}
