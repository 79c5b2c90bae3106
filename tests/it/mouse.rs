//! Clicks and the wheel, as a terminal reports them.

use vt100::{MouseProtocolEncoding, MouseProtocolMode};

use crate::support::fake_machine::{RealProcess, dashboard, on_gpu};
use crate::support::fake_nvml::FakeNvml;
use crate::support::screen_tables::{gpu_shows, shows};
use crate::support::terminal::Terminal;

/// Clicks the first occurrence of these words.
#[track_caller]
fn press(terminal: &Terminal, words: &str) {
    press_at(terminal, places(terminal, words)[0]);
}

/// Clicks the last occurrence of these words, since a menu covers the row that it belongs to.
#[track_caller]
fn press_last(terminal: &Terminal, words: &str) {
    press_at(terminal, *places(terminal, words).last().unwrap());
}

/// Returns the column and row of the words, for each line that contains them.
#[track_caller]
fn places(terminal: &Terminal, words: &str) -> Vec<(usize, usize)> {
    let text = terminal.text();
    let column = |line: &str| Some(line[..line.find(words)?].chars().count());
    let lines = text.lines().enumerate();
    let places: Vec<_> = lines.filter_map(|(y, line)| Some((column(line)?, y))).collect();
    assert!(!places.is_empty(), "no {words} in\n{text}");
    places
}

fn press_at(terminal: &Terminal, (x, y): (usize, usize)) {
    terminal.send(&format!("\x1b[<0;{};{}M\x1b[<0;{};{}m", x + 1, y + 1, x + 1, y + 1));
}

fn marked(words: String) -> impl Fn(&vt100::Screen) -> bool {
    move |screen| {
        let text = screen.contents();
        text.lines().any(|line| line.starts_with('▸') && line.contains(&words))
    }
}

#[test]
fn a_click_selects_a_second_opens_and_a_heading_orders() {
    let [a, b] = ["a.py", "b.py"].map(RealProcess::start);
    let scenario = [
        "[[gpu]]\n[[gpu]]\n".to_owned(),
        on_gpu(0, &a, "used = \"2 GiB\""),
        on_gpu(0, &b, "used = \"1 GiB\""),
    ];
    let fake = FakeNvml::new(&scenario.concat());
    let terminal = dashboard(&fake).start();
    let [a, b] = [&a, &b].map(|process| process.pid().to_string());
    terminal.wait_for(|s| s.contents().contains(&b), "the processes");
    press(&terminal, &b);
    terminal.wait_for(marked(b.clone()), "the cursor on b");
    // Clicking a heading sorts by it. Clicking it again reverses the order.
    press(&terminal, "VRAM GiB/min");
    terminal.wait_text("▼VRAM");
    press(&terminal, "VRAM GiB/min");
    terminal.wait_text("▲VRAM");
    terminal.wait_for(marked(b.clone()), "the cursor still on b");
    // The wheel moves the cursor.
    terminal.send("\x1b[<65;10;10M");
    terminal.wait_for(marked(a.clone()), "the cursor on a");
    terminal.send("\x1b[<64;10;10M");
    terminal.wait_for(marked(b.clone()), "the cursor on b");
    press(&terminal, &b);
    terminal.wait_text("On the GPU");
    terminal.send("\x1b");
    terminal.wait_for(|s| gpu_shows(s, "1", &[]), "the overview");
    press(&terminal, "  1 ▇");
    terminal.wait_for(marked("  1 ".into()), "the cursor on GPU 1");
    // Clicks do not go through a menu. Clicking a key in the footer presses it.
    press(&terminal, "s sort");
    terminal.wait_text("Sort by");
    press(&terminal, &a);
    terminal.send("\x1b[<65;10;10M");
    terminal.wait_text("▸ GiB/min");
    terminal.send("q");
    terminal.wait_for(marked("  1 ".into()), "the cursor still on GPU 1");
    terminal.send("q");
    assert_eq!(terminal.wait_exit().exit_code(), 0);
    terminal.assert_restored();
}

#[test]
fn click_chooses_in_menus_and_panes() {
    let [mut a, b] = ["a.py", "b.py"].map(RealProcess::start);
    let scenario = [
        "[[gpu]]\n".to_owned(),
        on_gpu(0, &a, "used = \"2 GiB\""),
        on_gpu(0, &b, "used = \"1 GiB\""),
    ];
    let fake = FakeNvml::new(&scenario.concat());
    let terminal = dashboard(&fake).start();
    terminal.wait_for(|s| shows(s, b.pid(), &[]), "the processes");
    // Sort order: one click selects it.
    terminal.send("s");
    press_last(terminal_with(&terminal, "Sort by"), "  PID");
    terminal.wait_for(|s| !s.contents().contains("Sort by"), "the menu is closed");
    terminal.wait_text("▲PID");
    // Columns: one click hides a column, another shows it.
    terminal.send("C");
    press(terminal_with(&terminal, "Process columns"), "[x] VRAM");
    terminal.wait_text("[ ] VRAM");
    press(&terminal, "[ ] VRAM");
    terminal.wait_text("[x] VRAM");
    terminal.send("q");
    // A click selects a signal but never sends it.
    press(&terminal, &a.pid().to_string());
    terminal.wait_for(marked(a.pid().to_string()), "the cursor on a");
    if crate::support::fake_machine::is_host() {
        terminal.send("x");
        press(terminal_with(&terminal, "Signal to"), "INT ");
        terminal.wait_text("Send INT to");
        press(&terminal, "y send");
        terminal.send("q");
        terminal.wait_for(|s| !s.contents().contains("Send INT to"), "the question is closed");
    }
    // On a GPU's screen: click its processes and its facts.
    terminal.send("g\r");
    terminal.wait_text("Tab scrolls");
    press(&terminal, &b.pid().to_string());
    terminal.wait_for(marked(b.pid().to_string()), "the cursor on b");
    press(&terminal, "Activity");
    terminal.wait_for(|s| !s.contents().contains("Tab scrolls"), "the facts have the keys");
    press(&terminal, &b.pid().to_string());
    terminal.wait_for(marked(b.pid().to_string()), "the cursor on b again");
    press(&terminal, &b.pid().to_string());
    terminal.wait_text("On the GPU");
    terminal.send("\x03");
    assert_eq!(terminal.wait_exit().exit_code(), 0);
    terminal.assert_restored();
    assert!(a.finish().success(), "nothing was sent to it");
}

/// Returns the terminal once it shows these words.
#[track_caller]
fn terminal_with<'t>(terminal: &'t Terminal, words: &str) -> &'t Terminal {
    terminal.wait_text(words);
    terminal
}

#[test]
fn no_mouse_leaves_the_mouse_to_the_terminal() {
    let process = RealProcess::start("a.py");
    let fake = FakeNvml::new(&["[[gpu]]\n", &on_gpu(0, &process, "")].concat());
    for (args, mode) in
        [(vec![], MouseProtocolMode::PressRelease), (vec!["--no-mouse"], MouseProtocolMode::None)]
    {
        let terminal = dashboard(&fake).args(args).start();
        terminal.wait_for(|s| shows(s, process.pid(), &[]), "the process");
        let screen = terminal.screen();
        assert_eq!(screen.mouse_protocol_mode(), mode);
        let wanted = mode != MouseProtocolMode::None;
        let sgr = screen.mouse_protocol_encoding() == MouseProtocolEncoding::Sgr;
        assert_eq!(sgr, wanted);
        terminal.send("q");
        assert_eq!(terminal.wait_exit().exit_code(), 0);
        terminal.assert_restored();
    }
}
