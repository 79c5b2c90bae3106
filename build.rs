//! Embeds the error cards: a card is added by adding its file, and no list names it a second time.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::{env, fs, io};

fn main() -> io::Result<()> {
    let root = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").unwrap_or_default());
    let cards = root.join("assets/cards");
    println!("cargo::rerun-if-changed={}", cards.display());
    let mut files = fs::read_dir(&cards)?
        .map(|entry| Ok(entry?.path()))
        .collect::<io::Result<Vec<_>>>()?;
    files.retain(|path| path.extension().is_some_and(|kind| kind == "md"));
    files.sort();
    let mut list = String::from("&[\n");
    for file in &files {
        let id = file.file_stem().unwrap_or_default().to_string_lossy();
        let path = file.display().to_string();
        let _ = writeln!(list, "    ({id:?}, include_str!({path:?})),");
    }
    list.push(']');
    let out = PathBuf::from(env::var_os("OUT_DIR").unwrap_or_default());
    fs::write(Path::new(&out).join("cards.rs"), list)
}
