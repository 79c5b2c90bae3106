use super::*;
use proptest::prelude::*;

/// Formats terms for comparison.
fn shown(text: &str) -> Vec<String> {
    let terms = parse(text).expect(text);
    let show = |term: &Term| {
        let not = if term.negated { "not " } else { "" };
        match &term.test {
            Test::Text(text) => format!("{not}text {text}"),
            Test::Field(field, compare) => format!("{not}{} {compare:?}", field.name),
        }
    };
    terms.iter().map(show).collect()
}

fn error(text: &str) -> String {
    parse(text).expect_err(text).to_string()
}

#[test]
fn parses_words_as_text_or_terms() {
    let table: &[(&str, &[&str])] = &[
        ("", &[]),
        ("  train  2 ", &["text train", "text 2"]),
        ("\"train.py --lr\"", &["text train.py --lr"]),
        ("--lr=1 -2 lr=3 a\"b:c", &["text --lr=1", "text -2", "text lr=3", "text ab:c"]),
        ("!eval -eval", &["not text eval", "not text eval"]),
        ("user:me", &["user Texts([\"me\"])"]),
        ("user=me", &["user Texts([\"me\"])"]),
        ("-user:ana,bo|cy", &["not user Texts([\"ana\", \"bo\", \"cy\"])"]),
        ("cmd:\"a, b\"", &["cmd Texts([\"a, b\"])"]),
        ("pid:418 rank=3", &["pid Numbers([418.0])", "rank Numbers([3.0])"]),
        ("sm>50", &["sm Bound(Above, 50.0)"]),
        ("sm<=5%", &["sm Bound(AtMost, 5.0)"]),
        ("vram>=1.5k", &["vram Bound(AtLeast, 1536.0)"]),
        ("vram<1", &["vram Bound(Below, 1073741824.0)"]),
        ("vram>2mib", &["vram Bound(Above, 2097152.0)"]),
        ("age>2h", &["age Bound(Above, 7200.0)"]),
        ("state:oom|dead", &["state States([Oom, Dead])"]),
    ];
    for (text, terms) in table {
        assert_eq!(shown(text), *terms, "{text}");
    }
}

#[test]
fn errors_suggest_the_nearest_name() {
    assert_eq!(error("a usr:me"), "unknown field `usr`; did you mean `user`?");
    assert_eq!(error("vrma>1g"), "unknown field `vrma`; did you mean `vram`?");
    assert_eq!(
        error("https://x"),
        "unknown field `https`; press ? for the fields, or quote the term"
    );
    assert_eq!(error("state:ded"), "unknown state `ded`; did you mean `dead`?");
    assert_eq!(error("vram>"), "`vram>` needs a value, such as vram>10g");
    assert_eq!(error("vram>1x"), "`1x` is not a valid size; write vram>10g");
    assert_eq!(error("vram>1,2"), "`1,2` is not a valid size; write vram>10g");
    assert_eq!(error("vram:10g"), "`vram` does not accept `:`; write vram>10g");
    assert_eq!(error("user>me"), "`user` does not accept `>`; write user:me");
    assert_eq!(error("pid:x"), "`x` is not a valid number; write pid:418");
    assert_eq!(error("!"), "`!` must be followed by a term");
}

#[test]
fn examples_in_the_help_are_valid() {
    for field in FIELDS {
        assert_eq!(parse(field.example).map(|terms| terms.len()), Ok(1));
    }
    for (example, _) in super::super::SYNTAX {
        assert!(parse(example).is_ok(), "{example}");
    }
}

proptest! {
    #[test]
    fn never_panics(text: String) {
        let _ = parse(&text);
    }

    #[test]
    fn invalid_filters_are_explained(
        text in "(-|!)?(user|vram|gpu|state|sm|x)(:|=|>|<|>=|,)?[a-z0-9\"|.,]{0,5} ?"
    ) {
        if let Err(error) = parse(&text) {
            let error = error.to_string();
            prop_assert!(!error.is_empty() && !error.ends_with('.'), "{}", error);
        }
    }

    #[test]
    fn letters_and_digits_are_free_text(words in prop::collection::vec("[a-z0-9_./]{1,9}", 0..6)) {
        let terms = parse(&words.join(" ")).expect("text");
        let texts: Vec<String> = terms
            .into_iter()
            .filter_map(|term| match term.test {
                Test::Text(text) if !term.negated => Some(text),
                _ => None,
            })
            .collect();
        prop_assert_eq!(texts, words);
    }
}
