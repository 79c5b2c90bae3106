//! Menus of the dashboard, and actions that work from any screen.

use gputop::dashboard::process_columns::PROCESS_COLUMNS;
use gputop::tui::picture::text_of;
use gputop::tui::screen::Effect;
use gputop_model::protocol::Request;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use crate::support::many_processes::{Member, TestApp, frame};
use crate::support::screen_fixture;

fn test_app() -> TestApp {
    let members = [
        Member::new(418, "ana", "train.py", &[(0, 20)]),
        Member::new(977, "bob", "blender", &[(0, 2)]),
    ];
    TestApp::new(1, &members)
}

#[test]
fn letters_in_the_sort_menu_select_the_next_column_with_that_letter() {
    let mut test_app = test_app();
    test_app.send("sr");
    let text = test_app.text(140, 40);
    assert!(text.contains("▸ RANK") && text.contains("Enter sort  a-z select"), "{text}");
    test_app.send("\x1b");
    // Several columns begin with an R or a G. The letters g and o are keys elsewhere.
    for (keys, sorted) in [
        ("sv\n", "sorted by VRAM, descending"),
        ("sr\n", "sorted by RESV, descending"),
        ("sr\n", "sorted by RETRY, descending"),
        ("so\n", "sorted by OOM, descending"),
        // The first letters of a title select it.
        ("scp\n", "sorted by CPU%, descending"),
        ("sfi\n", "sorted by FITS, ascending"),
        ("sg\n", "sorted by GPU, then VRAM"),
        ("sgg\n", "sorted by GiB/min, descending"),
        ("sgg\n", "sorted by GPU, ascending"),
        ("I", "sorted by GPU, descending"),
        (">", "sorted by PID, ascending"),
    ] {
        test_app.send(keys);
        let text = test_app.text(140, 40);
        assert!(text.contains(sorted) && !text.contains("Sort by"), "{keys}: {text}");
    }
}

#[test]
fn a_narrow_menu_says_how_to_leave_it() {
    let mut test_app = test_app();
    for menu in ["A", "s", "C"] {
        test_app.send(menu);
        let text = test_app.text(40, 6);
        assert!(text.contains("Esc back"), "{menu}: {text}");
        test_app.send("\x1b");
    }
}

#[test]
fn a_theme_is_shown_under_the_cursor_and_esc_restores_the_previous_one() {
    let mut test_app = test_app();
    let before = test_app.app.ui.theme.colours.clone();
    test_app.send("A");
    assert!(test_app.text(140, 40).contains("▸ mono"));
    test_app.send("k");
    assert_ne!(test_app.app.ui.theme.colours, before);
    test_app.send("\x1b");
    assert_eq!(test_app.app.ui.theme.colours, before);
    test_app.send("Ak\n");
    assert_ne!(test_app.app.ui.theme.colours, before);
    assert!(!test_app.text(140, 40).contains("mono"));
}

#[test]
fn the_keys_for_the_next_gpu_say_where_there_is_none() {
    let message = |gpus, keys: &str| {
        let members = [Member::new(418, "ana", "train.py", &[(0, 20)])];
        let mut app = TestApp::new(gpus, &members);
        app.send(keys);
        let text = app.text(140, 40);
        text.lines()
            .find(|line| line.contains("This is the "))
            .unwrap_or_default()
            .trim()
            .to_owned()
    };
    assert_eq!(message(1, "]"), "This is the only GPU");
    assert_eq!(message(2, "]"), "");
    assert_eq!(message(2, "]]"), "This is the last GPU");
    // The process under the cursor is on the first GPU.
    assert_eq!(message(2, "\t["), "This is the first GPU");
    assert_eq!(message(2, "\t]"), "");
}

#[test]
fn the_stack_key_works_on_the_overview() {
    let is_stack = |request: &&Request| matches!(request, Request::Stacks(key) if key.pid.0 == 418);
    // With a GPU under the cursor, the key reads the stack of its largest process.
    for keys in ["S", "\tS"] {
        let mut test_app = test_app();
        test_app.send(keys);
        assert!(test_app.text(140, 40).contains("On the GPU"));
        assert_eq!(test_app.asked.iter().filter(is_stack).count(), 1);
    }
    let mut idle = TestApp::new(1, &[]);
    idle.send("S");
    assert!(idle.text(140, 40).contains("no process under the cursor"));
}

#[test]
fn the_signal_question_names_gpu_memory_and_owner() {
    let member = Member::new(977, "www-data", "serve.py", &[(0, 74), (1, 74)]);
    let mut app = TestApp::new(2, &[member]);
    app.send("\tT\n");
    let question = app.text(120, 30);
    assert!(question.contains("Send TERM to 977 serve.py?"), "{question}");
    assert!(question.contains("977  www-data  0,1   148.0  "), "{question}");
    let owner = "PID 977 is not yours. It belongs to www-data and holds 148.00 GiB.";
    assert!(question.contains(owner), "{question}");
}

#[test]
fn the_theme_menu_saves_the_theme_on_request() {
    let mut app = TestApp::new(1, &[] as &[Member]);
    app.send("Aj");
    assert!(app.text(100, 30).contains("W save as default"));
    let key = KeyEvent::new(KeyCode::Char('W'), KeyModifiers::NONE);
    let (effect, _) = app.view.key(key, &mut app.app);
    assert!(matches!(effect, Effect::SaveTheme(_)));
    assert!(!app.text(100, 30).contains("save as default"));
}

#[test]
fn eight_gpus_and_sixteen_processes_fit_80x24() {
    let member = |n: u32| Member::new(400 + n, "ana", "train.py", &[(n % 8, 40)]);
    let members: Vec<Member> = (0..16).map(member).collect();
    let app = TestApp::new(8, &members);
    let text = app.text(80, 24);
    let rows = text.lines().filter(|line| line.contains("100.0   40.0"));
    assert_eq!(rows.count(), 8, "{text}");
    assert!(!text.contains(" of 8 "), "{text}");
    assert!(text.contains("more"), "{text}");
}

#[test]
fn a_nearly_full_gpu_is_marked() {
    let mut frame = frame(2, &[]);
    frame.gpus[1].memory.used = gputop_model::units::Bytes::gib(136).into();
    frame.gpus[1].memory.free = gputop_model::units::Bytes::gib(4).into();
    let app = TestApp::of_frame(frame);
    let text = app.text(120, 30);
    let row = |gpu: &str| text.lines().find(|line| line.contains(gpu)).unwrap();
    assert!(row("   1 ").contains(" !4.0 "), "{text}");
    assert!(!row("▸  0 ").contains('!'), "{text}");
    // The percentage is marked in a small pane, too.
    assert!(app.text(40, 6).contains("!97%"), "{}", app.text(40, 6));
}

#[test]
fn columns_that_are_not_shown_state_the_reason() {
    let mut test_app = test_app();
    test_app.send("C");
    let text = test_app.text(80, 40);
    let line = |title: &str| text.lines().find(|line| line.contains(title)).unwrap();
    assert!(line("] CACHED").contains("needs "), "{text}");
    assert!(line("] CONTAINER").contains("no values; "), "{text}");
    // A column that the user chose is not ticked while the table does not show it.
    for (title, mark) in [("CACHED", "[-]"), ("CONTAINER", "[-]"), ("USER", "[x]")] {
        assert!(line(&format!("] {title}")).contains(&format!("{mark} {title}")), "{text}");
    }
    assert!(!line("] USER").contains("needs "), "{text}");
    assert!(!test_app.text(300, 40).contains("needs "));
}

#[test]
fn the_sort_column_is_shown() {
    let mut test_app = test_app();
    assert!(!test_app.text(80, 24).contains("CACHED"));
    let mut columns = PROCESS_COLUMNS.iter();
    let cached = columns.position(|column| column.title == "CACHED");
    test_app.app.host.processes.set_sort(cached, false);
    let text = test_app.text(80, 24);
    assert!(text.contains("▼CACHED"), "{text}");
}

#[test]
fn main_keys_fit_80_columns_during_playback() {
    let app = screen_fixture::app_at(
        screen_fixture::FOUR_GPUS,
        98,
        gputop::tui::theme::Palette::None,
        false,
        false,
    );
    let footer = |width| {
        let text = text_of(&screen_fixture::draw(&app, "overview", width, 24));
        text.lines().last().unwrap_or_default().to_owned()
    };
    for key in ["/ filter", "s sort", "Space play", "? help"] {
        assert!(footer(80).contains(key), "{}", footer(80));
    }
    for key in ["v sort by VRAM", "t group", "Left -10s"] {
        assert!(footer(120).contains(key), "{}", footer(120));
    }
}

#[test]
fn a_gpu_screen_shows_what_fits_for_a_new_process() {
    let mut app = TestApp::new(1, &[] as &[Member]);
    app.send("\n");
    let text = app.text(120, 60);
    let fits = text.lines().find(|line| line.contains("FITS"));
    assert!(fits.is_some_and(|line| line.contains("39.50 GiB~  for a new process")), "{text}");
    app.send("?/fits");
    let help = app.text(120, 60);
    assert!(help.contains("FREE") && help.contains("new process (FITS)"), "{help}");
}

#[test]
fn recordings_without_names_of_tensors_offer_neither_holders_nor_stacks() {
    let app = |live| {
        let palette = gputop::tui::theme::Palette::None;
        screen_fixture::app_at(screen_fixture::FOUR_GPUS, 118, palette, false, live)
    };
    let footer = |live| {
        let text = text_of(&screen_fixture::draw(&app(live), "memory", 200, 40));
        text.lines().last().unwrap_or_default().to_owned()
    };
    for key in ["o tensors", "S read stack"] {
        assert!(footer(true).contains(key), "{}", footer(true));
        assert!(!footer(false).contains(key), "{}", footer(false));
    }
}
