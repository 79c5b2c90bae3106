//! Embeds the error cards, their tables and the workloads. To add one, add its file; there is no other list.
//!
//! The TOML of the cards is embedded as JSON, with the literals that each signature requires. Parsing the TOML and
//! deriving the literals at run time would make `gputop explain` too slow for a short log. The JSON is compressed, because it
//! would otherwise be the largest constant in the program (1.2 MB).

#[path = "src/anchor.rs"]
mod anchor;
#[path = "src/expression.rs"]
mod expression;
#[path = "src/needle.rs"]
mod needle;
#[path = "src/shared_rules.rs"]
mod shared_rules;

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::{env, fs, io};

use flate2::Compression;
use flate2::write::GzEncoder;

fn main() -> io::Result<()> {
    let root = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").unwrap_or_default());
    for source in [
        "src/anchor.rs",
        "src/expression.rs",
        "src/needle.rs",
        "src/shared_rules.rs",
        "assets/shared-rules.toml",
    ] {
        println!("cargo::rerun-if-changed={source}");
    }
    let out = PathBuf::from(env::var_os("OUT_DIR").unwrap_or_default());
    let mut cards = packed(&out.join("cards.jsonl.gz"))?;
    writeln!(cards, "{}", tables(&root.join("assets"))?)?;
    let mut all = Vec::new();
    for file in &files_in(&root.join("assets/cards"), "md")? {
        let card = card(&fs::read_to_string(file)?).unwrap_or_default();
        writeln!(cards, "{}", serde_json::to_string(&card)?)?;
        all.push(card);
    }
    cards.finish()?;
    let ordinary = root.join("assets/ordinary.log");
    println!("cargo::rerun-if-changed={}", ordinary.display());
    fs::write(out.join("searches.rs"), searches(&all, &fs::read_to_string(ordinary)?))?;
    embed_workloads(&root, &out)
}

/// Returns the texts that the scanner searches for, with their anchors, as a Rust expression.
fn searches(cards: &[toml::Table], ordinary: &str) -> String {
    /// A program prints its ordinary lines again and again.
    const REPEATED: usize = 20;
    let prose = cards.iter().filter_map(|card| card.get("text")?.as_str());
    let prose = prose.chain([ordinary; REPEATED]).collect::<Vec<_>>().join("\n").into_bytes();
    let signatures = cards.iter().filter_map(|card| card.get("signature")?.as_array()).flatten();
    let anchors = signatures.flat_map(|signature| match signature.get("anchors") {
        Some(listed) => strings(listed).map(|text| text.as_bytes().to_vec()).collect(),
        None => {
            let written = signature.get("match").and_then(toml::Value::as_str);
            let anchors = written.and_then(|w| anchor::anchors(&expression::unwrapped(w), &prose));
            anchors.unwrap_or_default()
        }
    });
    let bytes = |text: &[u8]| format!("b\"{}\"", text.escape_ascii());
    let search = |search: anchor::Search| {
        let anchors = search.anchors.iter().map(|(at, text)| format!("({at}, {})", bytes(text)));
        format!("({}, &[{}]),\n", bytes(&search.text), anchors.collect::<Vec<_>>().join(", "))
    };
    let all = anchor::searches(&anchors.collect(), &prose);
    format!("&[\n{}]", all.into_iter().map(search).collect::<String>())
}

/// Returns the tables of assertions and Xids as JSON.
fn tables(assets: &Path) -> io::Result<String> {
    let mut text = String::new();
    for name in ["assertions.toml", "xids.toml"] {
        let file = assets.join(name);
        println!("cargo::rerun-if-changed={}", file.display());
        text += &fs::read_to_string(file)?;
    }
    Ok(serde_json::to_string(&text.parse::<toml::Table>().map_err(io::Error::other)?)?)
}

/// Embeds the remedies and the workloads.
fn embed_workloads(root: &Path, out: &Path) -> io::Result<()> {
    let json = |file: &Path| -> io::Result<String> {
        println!("cargo::rerun-if-changed={}", file.display());
        let table = fs::read_to_string(file)?.parse::<toml::Table>();
        let table = table.map_err(|e| io::Error::other(format!("{}: {e}", file.display())))?;
        Ok(serde_json::to_string(&table)?)
    };
    let mut lines = packed(&out.join("workloads.jsonl.gz"))?;
    writeln!(lines, "{}", json(&root.join("assets/remedies.toml"))?)?;
    for file in files_in(&root.join("assets/workloads"), "toml")? {
        let id = file.file_stem().unwrap_or_default().to_string_lossy();
        writeln!(lines, "[{id:?},{}]", json(&file)?)?;
    }
    lines.finish()?;
    Ok(())
}

fn strings(list: &toml::Value) -> impl Iterator<Item = &str> {
    list.as_array().into_iter().flatten().filter_map(toml::Value::as_str)
}

fn packed(file: &Path) -> io::Result<GzEncoder<fs::File>> {
    Ok(GzEncoder::new(fs::File::create(file)?, Compression::best()))
}

/// Returns the files with an extension in a folder, sorted. New files in it lead to another build.
fn files_in(folder: &Path, extension: &str) -> io::Result<Vec<PathBuf>> {
    println!("cargo::rerun-if-changed={}", folder.display());
    let mut files =
        fs::read_dir(folder)?.map(|entry| Ok(entry?.path())).collect::<io::Result<Vec<_>>>()?;
    files.retain(|path| path.extension().is_some_and(|kind| kind == extension));
    files.sort();
    Ok(files)
}

/// Returns a card's TOML with its Markdown and its literals. Omits an invalid card, which a test reports.
fn card(file: &str) -> Option<toml::Table> {
    let rest = file.strip_prefix("+++")?;
    let end = rest.find("\n+++")?;
    let mut card: toml::Table = rest[..end].parse().ok()?;
    shared_rules::expand(&mut card).ok()?;
    if let Some(toml::Value::Array(signatures)) = card.get_mut("signature") {
        signatures.iter_mut().for_each(add_needles);
    }
    let text = rest[end + 4..].trim().to_owned();
    card.insert("text".to_owned(), toml::Value::String(text));
    Some(card)
}

fn add_needles(signature: &mut toml::Value) {
    let Some(signature) = signature.as_table_mut() else {
        return;
    };
    let written = signature.get("match").and_then(toml::Value::as_str);
    let needles = written.and_then(|w| needle::needles(&expression::expanded(w)));
    let text = |needle: Vec<u8>| String::from_utf8(needle).ok().map(toml::Value::String);
    let needles: Option<Vec<toml::Value>> = needles.into_iter().flatten().map(text).collect();
    let further = written.map(|w| needle::further_needles(&expression::expanded(w)));
    let list = |set: Vec<Vec<u8>>| -> Option<toml::Value> {
        let literals: Option<Vec<toml::Value>> = set.into_iter().map(text).collect();
        literals.map(toml::Value::Array)
    };
    let further: Vec<toml::Value> = further.into_iter().flatten().filter_map(list).collect();
    signature.insert("needles".to_owned(), toml::Value::Array(needles.unwrap_or_default()));
    if !further.is_empty() {
        signature.insert("further_needles".to_owned(), toml::Value::Array(further));
    }
}
