use super::*;
use crate::recovery;
use crate::signature::Signatures;

#[test]
fn an_excerpt_contains_overlapping_context_once() {
    let text = (0..60).map(|n| format!("line {n} of the log")).collect::<Vec<_>>().join("\n");
    let of = |context: &str| Sighting {
        wording: String::new(),
        card: 0,
        weak: false,
        count: 1,
        found: FieldMap::default(),
        table: None,
        first_line: 1,
        last_line: 1,
        rank: None,
        writer: String::new(),
        time: None,
        frames: Vec::new(),
        quote: Quote::default(),
        context: format!("{context}\na line without a writer").into(),
        own_context: context.len(),
    };
    let log = LogFindings {
        sightings: vec![of(&text[..400]), of(&text[200..700]), of(&text[900..])],
        ..LogFindings::default()
    };
    let whole = format!("{}\n[...]\n{}", &text[..700], &text[900..]);
    let excerpt = |max| log.excerpt(max, str::to_owned);
    assert_eq!(excerpt(1 << 20), whole);
    assert_eq!(excerpt(500), text[..400]);
    assert_eq!(log.excerpt(9, |_| "clean".into()), "clean");
}

#[test]
fn an_excerpt_omits_lines_that_may_be_cut() {
    let line = "a line of the log\n";
    let long = format!("hf_half{}", line.repeat(800));
    assert_eq!(whole_lines(&long), line.repeat(799).trim_end());
    assert_eq!(whole_lines("short\ntext"), "short\ntext");
    let endless = "x".repeat(3 * CONTEXT);
    assert_eq!(whole_lines(&endless), endless);
}

#[test]
fn reads_the_pid_in_a_launcher_prefix() {
    assert_eq!(pid_of("VllmWorker rank=1 pid=4711"), Some(4711));
    assert_eq!(pid_of("rank 3"), None);
}

#[test]
fn reads_the_rank_in_a_file_name() {
    assert_eq!(rank_of("logs/rank_3.log"), Some(3));
    assert_eq!(rank_of("logs/worker-12.out"), Some(12));
    assert_eq!(rank_of("run/attempt_0/5/stderr.log"), Some(5));
    assert_eq!(rank_of("train.log"), None);
}

/// Returns a catalogue that makes the diagnosis panic at the second of two failures, because the second failure's
/// card is missing.
fn broken() -> Catalogue {
    let whole = Catalogue::embedded();
    let known = |id: &str| whole.card(id).cloned().expect("a card");
    let cards = [known("host-oom-killer"), known("xid-79-off-bus")];
    let mut catalogue = Catalogue {
        signatures: Signatures::new(&cards),
        cards: cards.into(),
        tables: crate::tables::Tables::default(),
    };
    catalogue.cards.truncate(1);
    catalogue
}

#[test]
fn the_context_reaches_across_the_lines_of_failed_threads() {
    let thread = |n: u32, kernel: &str| {
        format!(
            "x.cu:1: {kernel}: block: [{},0,0], thread: [{},0,0] Assertion `t < n` failed.\n",
            n / 32,
            n % 32
        )
    };
    let threads: String =
        (0..8_000).map(|n| thread(n, if n % 2 == 0 { "gather" } else { "nll" })).collect();
    for tag in ["", "[rank1]: "] {
        let log = format!(
            "{}19 classes\n{threads}RuntimeError: CUDA error: device-side assert triggered\n",
            "loading\n".repeat(4_000)
        );
        let mut reader = LogReader::new(Catalogue::embedded(), "x");
        for line in log.split_inclusive('\n') {
            let tag = if line.contains("classes") { "" } else { tag };
            reader.push(format!("{tag}{line}").as_bytes());
        }
        let found = reader.finish();
        assert_eq!(found.sightings.len(), 2, "{:#?}", found.sightings);
        for sighting in &found.sightings {
            assert!(sighting.context.contains("19 classes"), "{tag}{sighting:#?}");
        }
        assert_eq!(found.sightings[0].count, 4_000);
    }
}

#[test]
fn reads_the_start_and_the_end_of_a_flood_of_errors() {
    let mut reader = LogReader::new(Catalogue::embedded(), "x");
    for rank in 0..20_000 {
        let line = format!(
            "[rank{rank}]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n"
        );
        reader.push(line.as_bytes());
    }
    reader.push(b"NVRM: GPU at PCI:0000:3b:00: GPU has fallen off the bus.\n");
    let found = reader.finish();
    assert!(found.skipped_bytes > 500_000, "{}", found.skipped_bytes);
    let sightings = found.sightings;
    assert!(sightings.len() <= MAX_SIGHTINGS + MAX_LAST_SIGHTINGS);
    assert_eq!(sightings[0].rank, Some(0));
    let last = &sightings[sightings.len() - 1];
    assert_eq!(Catalogue::embedded().cards[last.card].id, "xid-79-off-bus");
}

#[test]
fn a_panic_in_one_line_does_not_affect_other_failures() {
    let catalogue = broken();
    let killed = "Out of memory: Killed process 418 (python)\n";
    let bad = "NVRM: GPU at PCI:0000:3b:00: GPU has fallen off the bus.\n";
    let log = format!("one\n{killed}two\n{bad}{bad}three\n{}{killed}", "line\n".repeat(600));
    let mut reader = LogReader::new(&catalogue, "x");
    reader.push(log.as_bytes());
    let found = reader.finish();
    let lines: Vec<u64> = found.sightings.iter().map(|s| s.first_line).collect();
    assert_eq!(lines, [2, 607]);
    let failures = recovery::take_failures();
    assert_eq!(failures.len(), 1, "{failures:?}");
}

#[test]
fn a_panic_in_one_crash_does_not_affect_others() {
    let whole = Catalogue::embedded();
    let log = format!(
        "Out of memory: Killed process 418 (python)\n{}torch.OutOfMemoryError: CUDA out of memory. Tried to \
             allocate 2.00 GiB. GPU 0 has a total capacity of 23.69 GiB of which 1.06 GiB is free. Of the allocated \
             memory 14.10 GiB is allocated by PyTorch, and 8.02 GiB is reserved by PyTorch but unallocated.\n",
        "line\n".repeat(600)
    );
    let mut reader = LogReader::new(whole, "x");
    reader.push(log.as_bytes());
    // Make the diagnosis panic: a catalogue without signatures has no extraction rules for the card that the values
    // select.
    let catalogue = Catalogue {
        cards: whole.cards.clone(),
        signatures: Signatures::new(&[]),
        tables: crate::tables::Tables::default(),
    };
    let incidents = crate::diagnose(&catalogue, &[reader.finish()], &Default::default());
    let ids: Vec<&str> = incidents.iter().map(|one| one.id.as_str()).collect();
    assert_eq!(ids, ["host-oom-killer"]);
    assert_eq!(recovery::take_failures().len(), 1);
}
