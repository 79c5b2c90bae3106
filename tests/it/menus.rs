//! Menus of the dashboard, and actions that work from any screen.

use gputop::source::Request;

use crate::many_processes::{Desk, Member};

fn desk() -> Desk {
    let members = [
        Member::new(418, "ana", "train.py", &[(0, 20)]),
        Member::new(977, "bob", "blender", &[(0, 2)]),
    ];
    Desk::new(1, &members)
}

#[test]
fn letters_in_the_sort_menu_select_a_column() {
    let mut desk = desk();
    desk.send("sv");
    let sorted = desk.text(140, 40);
    assert!(
        sorted.contains("by VRAM") && !sorted.contains("Sort by"),
        "{sorted}"
    );
    // Several columns below VRAM begin with an R.
    desk.send("sr");
    assert!(desk.text(140, 40).contains("▸ RESV"));
    desk.send("r");
    assert!(desk.text(140, 40).contains("▸ RETRY"));
    desk.send("\n");
    assert!(desk.text(140, 40).contains("by RETRY"));
    desk.send("v");
    assert!(desk.text(140, 40).contains("sorted by VRAM"));
}

#[test]
fn a_theme_is_shown_under_the_cursor_and_esc_restores_the_previous_one() {
    let mut desk = desk();
    let before = desk.app.theme.colours.clone();
    desk.send("A");
    assert!(desk.text(140, 40).contains("▸ mono"));
    desk.send("k");
    assert_ne!(desk.app.theme.colours, before);
    desk.send("\x1b");
    assert_eq!(desk.app.theme.colours, before);
    desk.send("Ak\n");
    assert_ne!(desk.app.theme.colours, before);
    assert!(!desk.text(140, 40).contains("mono"));
}

#[test]
fn the_stack_key_works_on_the_overview() {
    let mut desk = desk();
    desk.send("S");
    assert!(desk.text(140, 40).contains("no process selected"));
    desk.send("\tS");
    assert!(desk.text(140, 40).contains("On the GPU"));
    let is_stack = |request: &&Request| matches!(request, Request::Stacks(key) if key.pid.0 == 418);
    assert_eq!(desk.asked.iter().filter(is_stack).count(), 1);
}
