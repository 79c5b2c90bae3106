//! Menus of the dashboard, and actions that work from any screen.

use gputop::protocol::Request;

use crate::many_processes::{Member, TestApp};

fn test_app() -> TestApp {
    let members = [
        Member::new(418, "ana", "train.py", &[(0, 20)]),
        Member::new(977, "bob", "blender", &[(0, 2)]),
    ];
    TestApp::new(1, &members)
}

#[test]
fn letters_in_the_sort_menu_select_a_column() {
    let mut test_app = test_app();
    test_app.send("sv");
    let sorted = test_app.text(140, 40);
    assert!(
        sorted.contains("by VRAM") && !sorted.contains("Sort by"),
        "{sorted}"
    );
    // Several columns below VRAM begin with an R.
    test_app.send("sr");
    assert!(test_app.text(140, 40).contains("▸ RESV"));
    test_app.send("r");
    assert!(test_app.text(140, 40).contains("▸ RETRY"));
    test_app.send("\n");
    assert!(test_app.text(140, 40).contains("by RETRY"));
    test_app.send("v");
    assert!(test_app.text(140, 40).contains("sorted by VRAM"));
}

#[test]
fn a_theme_is_shown_under_the_cursor_and_esc_restores_the_previous_one() {
    let mut test_app = test_app();
    let before = test_app.app.theme.colours.clone();
    test_app.send("A");
    assert!(test_app.text(140, 40).contains("▸ mono"));
    test_app.send("k");
    assert_ne!(test_app.app.theme.colours, before);
    test_app.send("\x1b");
    assert_eq!(test_app.app.theme.colours, before);
    test_app.send("Ak\n");
    assert_ne!(test_app.app.theme.colours, before);
    assert!(!test_app.text(140, 40).contains("mono"));
}

#[test]
fn the_stack_key_works_on_the_overview() {
    let mut test_app = test_app();
    test_app.send("S");
    assert!(test_app.text(140, 40).contains("no process selected"));
    test_app.send("\tS");
    assert!(test_app.text(140, 40).contains("On the GPU"));
    let is_stack = |request: &&Request| matches!(request, Request::Stacks(key) if key.pid.0 == 418);
    assert_eq!(test_app.asked.iter().filter(is_stack).count(), 1);
}
