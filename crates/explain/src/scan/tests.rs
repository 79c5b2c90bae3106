use super::*;

fn excerpts(pieces: &[&[u8]]) -> Vec<LogChunk> {
    let mut scanner = Scanner::default();
    let mut all: Vec<LogChunk> = pieces.iter().flat_map(|p| scanner.push(p)).collect();
    all.extend(scanner.finish());
    all
}

#[test]
fn all_anchors_fit_the_vector_search() {
    let mut anchors = SEARCHES.iter().flat_map(|(_, anchors)| *anchors);
    assert!(anchors.all(|(_, anchor)| (4..=MAX_ANCHOR).contains(&anchor.len())));
    let mut searchers = searchers().iter();
    let is_vector = |searcher: &Searcher| matches!(searcher.texts, TextSearcher::Vector(_));
    assert!(!cfg!(target_arch = "x86_64") || searchers.all(is_vector));
}

#[test]
fn the_examples_of_all_cards_contain_anchors() {
    let cards = crate::Catalogue::embedded().cards.iter();
    let examples = cards.flat_map(|card| card.examples.iter().map(|example| &example.text));
    let without: Vec<&String> = examples.filter(|text| !has_anchor(text.as_bytes())).collect();
    assert!(without.is_empty(), "{without:#?}");
}

#[test]
fn ordinary_lines_contain_no_anchor() {
    let lines = include_str!("../../assets/ordinary.log").lines();
    let found: Vec<&str> = lines.filter(|line| has_anchor(line.as_bytes())).collect();
    assert!(found.is_empty(), "{found:#?}");
}

#[test]
fn an_anchor_that_is_split_between_two_pieces_is_found() {
    let text = "RuntimeError: CUDA error: device-side assert triggered\n";
    for at in 1..text.len() {
        let (first, second) = text.as_bytes().split_at(at);
        assert_eq!(excerpts(&[first, second]).len(), 1, "{at}");
    }
}

#[test]
fn a_short_text_is_read_whole_and_a_long_one_is_not() {
    let read = |text: &str| {
        let mut scanner = Scanner::default();
        assert!(scanner.push(text.as_bytes()).is_empty());
        scanner.open_short_text();
        scanner.finish().pop().map(|excerpt| excerpt.bytes.len())
    };
    assert_eq!(read("step 1\nweights differ\n"), Some(22));
    assert_eq!(read(&"step 1\n".repeat(10_000)), None);
}

#[test]
fn a_quiet_log_has_no_excerpts() {
    let quiet = "step 1 loss 0.5\n".repeat(100_000);
    assert_eq!(excerpts(&[quiet.as_bytes()]), []);
}

#[test]
fn line_numbers_do_not_depend_on_the_pieces() {
    let text = format!("{}CUDA error: x\n{}", "line\n".repeat(99_999), "more\n".repeat(50_000));
    for size in [7, 1000, 65_536, text.len()] {
        let pieces: Vec<&[u8]> = text.as_bytes().chunks(size).collect();
        let found = excerpts(&pieces);
        assert_eq!(found.len(), 1, "pieces of {size}");
        let shown = String::from_utf8_lossy(&found[0].bytes);
        let line = shown.lines().position(|l| l.contains("CUDA error")).expect("part of the text");
        assert_eq!(found[0].first_line + line as u64, 100_000, "pieces of {size}");
    }
}

#[test]
fn flushed_text_is_returned_once_and_the_rest_follows() {
    let text = format!(
        "{}Traceback (most recent call last):\n  File a\nRuntimeError: CUDA error: x\n{}",
        "quiet\n".repeat(20_000),
        "after\n".repeat(2_000)
    );
    for size in [1, 13, 4096] {
        let mut scanner = Scanner::default();
        let mut found = Vec::new();
        for piece in text.as_bytes().chunks(size) {
            found.extend(scanner.push(piece));
            assert!(!scanner.is_open() || scanner.buffer.len() < 200_000);
            found.extend(scanner.flush(true));
        }
        found.extend(scanner.finish());
        let (first, last) = (&found[0], &found[found.len() - 1]);
        let whole: Vec<u8> = found.iter().flat_map(|e| e.bytes.clone()).collect();
        let start = usize::try_from(first.start).expect("small");
        assert_eq!(&text.as_bytes()[start..start + whole.len()], whole);
        let lines = text[..start].lines().count() as u64;
        assert_eq!(first.first_line, lines + 1, "pieces of {size}");
        let at_anchor = text.find("Traceback").expect("part of the text");
        assert!(start + CONTEXT_BEFORE <= at_anchor + 4096 && start <= at_anchor);
        let end = last.start + last.bytes.len() as u64;
        assert!(
            end > (text.find("CUDA error").expect("part of the text") + CONTEXT_AFTER - 8) as u64
        );
        // With single-byte pieces, the error is returned as soon as its line is complete.
        if size == 1 {
            let with = |word: &str| found.iter().position(|e| e.bytes.ends_with(word.as_bytes()));
            assert!(with("last):\n") < with("CUDA error: x\n"));
        }
    }
}

#[test]
fn an_endless_line_is_cut_and_needs_bounded_memory() {
    let mut scanner = Scanner::default();
    let piece = [b"Killed ".as_slice(), &[b'x'; 1 << 20]].concat();
    let mut returned = 0;
    for _ in 0..64 {
        returned += scanner.push(&piece).len();
        assert!(scanner.buffer.len() < 4 << 20);
    }
    assert!(returned > 32);
}

#[test]
fn many_errors_are_several_bounded_excerpts_without_gap_or_overlap() {
    let text = "x.cu:1: block Assertion `a` failed.\n".repeat(50_000);
    let found = excerpts(&[text.as_bytes()]);
    assert!(found.iter().all(|e| e.bytes.len() <= MAX_EXCERPT + 8192));
    let total: usize = found.iter().map(|e| e.bytes.len()).sum();
    assert_eq!(total, text.len());
}
