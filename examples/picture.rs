//! Draws the README's pictures from the built-in recording: `cargo run --example picture`. A test fails if they differ
//! from what the program draws.

#[path = "../tests/pure/pictures/list.rs"]
mod list;
#[path = "../tests/it/support/screen_fixture.rs"]
mod screen_fixture;

fn main() -> std::io::Result<()> {
    for (path, drawn) in list::all() {
        std::fs::write(path, drawn)?;
    }
    Ok(())
}
