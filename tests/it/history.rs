//! Charts and the position in a recording, on a terminal.

use crate::support::terminal::Launch;

#[test]
fn charts_and_position_move_together_on_a_terminal() {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/recordings/four_gpus.gpt.zst");
    let terminal =
        Launch::gputop().args(["replay", "--paused", file]).env("TZ", "UTC").size(60, 120).start();
    terminal.wait_text("TIMELINE");
    // Skip forward by two minutes, show one minute, and move back by half of it.
    for _ in 0..12 {
        let before = position(&terminal.screen());
        terminal.send("\x1b[C");
        terminal.wait_for(move |s| position(s) >= before + 9, "ten seconds on");
    }
    let there = position(&terminal.screen());
    terminal.send("}}}}((");
    let is_there = move |screen: &vt100::Screen| (29..=33).contains(&(there - position(screen)));
    terminal.wait_for(is_there, "thirty seconds before");
    assert!(!terminal.text().contains("as of"), "{}", terminal.text());
    terminal.send("\x1b[D");
    let is_there = move |screen: &vt100::Screen| (39..=44).contains(&(there - position(screen)));
    terminal.wait_for(is_there, "forty seconds before");
    terminal.send("q");
    assert_eq!(terminal.wait_exit().exit_code(), 0);
    terminal.assert_restored();
}

/// Returns the seconds into the recording, from the header: `1:58/3:24`.
fn position(screen: &vt100::Screen) -> i64 {
    let text = screen.contents();
    let header = text.lines().next().unwrap_or_default();
    let word = header.split(' ').find(|word| word.contains(":") && word.contains('/'));
    let now = word.and_then(|word| word.split('/').next());
    let parts = now.and_then(|now| now.split_once(':'));
    parts.map_or(-1, |(m, s)| m.parse::<i64>().unwrap_or(0) * 60 + s.parse::<i64>().unwrap_or(0))
}
