//! Clicks and the wheel, as a terminal reports them.

use vt100::{MouseProtocolEncoding, MouseProtocolMode};

use crate::fake_nvml::FakeNvml;
use crate::machine::{RealProcess, dashboard, on_gpu};
use crate::tables::{gpu_shows, shows};
use crate::terminal::Terminal;

/// Presses the left button on the first place where these words stand.
#[track_caller]
fn press(terminal: &Terminal, words: &str) {
    let text = terminal.text();
    let mut lines = text.lines().enumerate();
    let at =
        lines.find_map(|(y, line)| Some((line.find(words).map(|x| line[..x].chars().count())?, y)));
    let (x, y) = at.unwrap_or_else(|| panic!("no {words} in\n{text}"));
    terminal.send(&format!(
        "\x1b[<0;{};{}M\x1b[<0;{};{}m",
        x + 1,
        y + 1,
        x + 1,
        y + 1
    ));
}

fn marked(words: String) -> impl Fn(&vt100::Screen) -> bool {
    move |screen| {
        let text = screen.contents();
        text.lines()
            .any(|line| line.starts_with('▸') && line.contains(&words))
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
    // A heading that orders, and once more the other way round.
    press(&terminal, "VRAM ALLOC");
    terminal.wait_text("▼VRAM");
    press(&terminal, "VRAM ALLOC");
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
    press(&terminal, "1 ··");
    terminal.wait_for(marked("  1 ".into()), "the cursor on GPU 1");
    // A menu is not clicked through; a key in the footer is that key.
    press(&terminal, "s sort");
    terminal.wait_text("Order by");
    press(&terminal, &a);
    terminal.send("\x1b[<65;10;10M");
    terminal.wait_text("▸ ALLOC");
    terminal.send("q");
    terminal.wait_for(marked("  1 ".into()), "the cursor still on GPU 1");
    terminal.send("q");
    assert_eq!(terminal.wait_exit().exit_code(), 0);
    terminal.assert_restored();
}

#[test]
fn the_mouse_is_left_alone_where_it_is_not_wanted() {
    let process = RealProcess::start("a.py");
    let fake = FakeNvml::new(&["[[gpu]]\n", &on_gpu(0, &process, "")].concat());
    for (args, mode) in [
        (vec![], MouseProtocolMode::PressRelease),
        (vec!["--no-mouse"], MouseProtocolMode::None),
    ] {
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
