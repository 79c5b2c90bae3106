//! Checks that the pictures in the documentation match what the program draws.

mod list;

use crate::support::screen_fixture;

#[test]
fn the_pictures_are_what_the_program_draws() {
    for (path, drawn) in list::all() {
        let committed = std::fs::read_to_string(&path).unwrap_or_default();
        assert!(
            committed == drawn,
            "{} is out of date; `cargo run --example picture` draws it anew",
            path.display()
        );
    }
}
