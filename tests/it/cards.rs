//! `gputop cards` lists, shows and finds cards.

use assert_cmd::Command;
use gputop_explain::catalogue::Catalogue;

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
