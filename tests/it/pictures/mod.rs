//! Checks that the pictures in the documentation match what the program draws.

mod list;

#[test]
fn the_pictures_are_what_the_program_draws() {
    for picture in list::PICTURES {
        let path = picture.path();
        let committed = std::fs::read_to_string(&path).unwrap_or_default();
        assert!(
            committed == picture.draw(),
            "{} is out of date; `cargo run --example picture` draws it anew",
            path.display()
        );
    }
}
