//! Draws the pictures of the README from the built-in recording: `cargo run --example picture`. A test fails when
//! they are not what the program draws.

#[path = "../tests/it/pictures/list.rs"]
mod list;
#[path = "../tests/it/screen_fixture.rs"]
mod screen_fixture;

fn main() -> std::io::Result<()> {
    for picture in list::PICTURES {
        std::fs::write(picture.path(), picture.draw())?;
    }
    Ok(())
}
