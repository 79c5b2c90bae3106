//! The text of explanations: the examples of all cards as they are printed.

use std::sync::LazyLock;

use gputop::export::explanation::{Detail, Style, text};
use gputop_explain::evidence::Measured;
use gputop_explain::{Catalogue, LogReader, diagnose, explain};
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
    let widths = [60, 80, 200].into_iter().cycle();
    // The text around the values is the same for most examples, so some of them are enough.
    for ((example, incidents), width) in answers().iter().step_by(4).zip(widths) {
        let style = Style { width, colour: false, height: None };
        let explanation = text(incidents, Detail::Full, &style);
        explained += usize::from(!explanation.is_empty());
        let both = format!("{}\n\n{explanation}", example.trim_end());
        assert_eq!(&read(&both), incidents, "{width}: {both}");
        // A reader that starts late reads only the explanation.
        assert_eq!(read(&explanation), [], "{width}: {explanation}");
    }
    assert!(explained > 100, "{explained}");
}

#[test]
fn the_default_answer_fits_a_screen() {
    let style = Style { width: 80, colour: false, height: None };
    let mut too_long = Vec::new();
    for (_, incidents) in answers() {
        let text = text(&incidents[..1], Detail::Short { more: "-v" }, &style);
        assert!(!text.contains("\nAVOID") && !text.contains("\n      5  "));
        // A line that PyTorch prints with every error explains nothing.
        assert!(!text.contains("Search for `"), "{text}");
        // The prompt needs one of 24 lines.
        if text.lines().count() > 23 {
            too_long.push(text);
        }
    }
    assert!(too_long.is_empty(), "{}", too_long.join("\n"));
}

#[test]
fn a_narrow_title_names_the_subject_instead_of_the_id() {
    let incident = Incident {
        id: "jax-resource-exhausted".into(),
        headline: "JAX OUT OF MEMORY".into(),
        ..Incident::default()
    };
    let first = |width| {
        let style = Style { width, colour: false, height: None };
        let text = text(std::slice::from_ref(&incident), Detail::Full, &style);
        text.lines().next().unwrap_or_default().to_owned()
    };
    assert!(first(60).ends_with("jax-resource-exhausted"), "{}", first(60));
    assert!(first(38).starts_with("JAX OUT OF MEMORY"), "{}", first(38));
    assert!(!first(38).contains("jax-"), "{}", first(38));
    assert!(first(38).chars().count() <= 38, "{}", first(38));
}
