//! `gputop cards`: lists and shows the cards of the error catalogue.

use std::path::{Path, PathBuf};

use color_eyre::Result;
use color_eyre::eyre::{WrapErr, bail, eyre};
use gputop_explain::tables::Tables;
use gputop_explain::workload::Workloads;
use gputop_explain::{Catalogue, card_check};

use super::print::{print, say};
use crate::export::cards;

#[derive(Debug, clap::Args)]
#[group(skip)]
pub struct Args {
    /// Card ID, Xid number, or words to search for
    #[arg(value_name = "ID")]
    words: Vec<String>,
    /// Check a directory of cards: each must parse and match its own examples
    #[arg(long, value_name = "DIR", hide = true)]
    check: Option<PathBuf>,
}

/// Lists or shows error cards. Exit codes: 0 shown; 1 no card found.
pub fn run(args: &Args) -> Result<u8> {
    if let Some(folder) = &args.check {
        use_workloads(folder)?;
        let faults = card_check::check(&files(folder, "md")?, tables(folder)?);
        print(&faults.iter().map(|f| format!("{f}\n")).collect::<String>())?;
        say(&format!("{} faults\n", faults.len()));
        return Ok(u8::from(!faults.is_empty()));
    }
    let catalogue = Catalogue::embedded();
    if args.words.is_empty() {
        print(&cards::index(catalogue))?;
        return Ok(0);
    }
    let query = args.words.join(" ");
    match cards::find(catalogue, &query).as_slice() {
        [] => {
            say(&format!("gputop: no card matches {query:?}. `gputop cards` lists all cards\n"));
            Ok(1)
        }
        [card] => {
            print(&cards::card(card, super::print::width()))?;
            Ok(0)
        }
        several => {
            print(&cards::list(several))?;
            print("\n`gputop cards ID` shows the fixes and causes of a card.\n")?;
            Ok(0)
        }
    }
}

pub fn from(folder: &Path) -> Result<Catalogue> {
    use_workloads(folder)?;
    let files = files(folder, "md")?;
    let (catalogue, faults) = Catalogue::read(
        files.iter().map(|(id, text)| (id.as_str(), text.as_str())),
        tables(folder)?,
    );
    if let Some(fault) = faults.first() {
        bail!("{}: {fault}", folder.display());
    }
    Ok(catalogue)
}

/// Reads the assertion and Xid tables from the parent directory of `folder`, where they are in the source tree.
fn tables(folder: &Path) -> Result<Tables> {
    let read = |name: &str| {
        let path = folder.join("..").join(name);
        std::fs::read_to_string(&path).wrap_err_with(|| format!("cannot read {}", path.display()))
    };
    Ok(Tables::parse(&(read("assertions.toml")? + &read("xids.toml")?))?)
}

/// Uses the workloads and remedies beside `folder` if it is in a source tree.
fn use_workloads(folder: &Path) -> Result<()> {
    let workloads = folder.join("../workloads");
    if !workloads.is_dir() {
        return Ok(());
    }
    let path = folder.join("../remedies.toml");
    let context = || format!("cannot read {}", path.display());
    let remedies = std::fs::read_to_string(&path).wrap_err_with(context)?;
    Workloads::replace_embedded(&files(&workloads, "toml")?, &remedies).map_err(|e| eyre!("{e}"))
}

/// Returns the ID and the text of each file in `folder` that has the extension, sorted by ID.
fn files(folder: &Path, extension: &str) -> Result<Vec<(String, String)>> {
    let context = || format!("cannot read {}", folder.display());
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder).wrap_err_with(context)? {
        let path = entry.wrap_err_with(context)?.path();
        if path.extension().is_some_and(|kind| kind == extension) {
            let id = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
            files.push((id, std::fs::read_to_string(&path).wrap_err_with(context)?));
        }
    }
    files.sort_unstable();
    Ok(files)
}
