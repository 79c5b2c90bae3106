//! Manual pages: of a command what clap knows of it, and of the program also its settings, keys and themes.

use clap::Command;
use clap_mangen::Man;
use clap_mangen::roff::{Inline, Roff, bold, roman};
use color_eyre::Result;
use color_eyre::eyre::bail;

use super::VARIABLES;
use crate::cli::settings::definition::{SETTINGS, TABLES};
use crate::model::nearest_name::instead_of;
use crate::tui::action::ACTIONS;
use crate::tui::keymap::{DEFAULT, Keymap, show_key};
use crate::tui::palette::PALETTES;

/// The page of the command that `words` lead to; without words, of the program.
pub fn page(program: Command, words: &[String]) -> Result<String> {
    let mut command = &program;
    for word in words {
        let names = command.get_subcommands().map(Command::get_name);
        let Some(next) = command.find_subcommand(word) else {
            bail!("there is no command `{word}`; {}", instead_of(word, names));
        };
        command = next;
    }
    let mut page = Vec::new();
    Man::new(command.clone()).render(&mut page)?;
    if words.is_empty() {
        sections()?.to_writer(&mut page)?;
    }
    Ok(String::from_utf8_lossy(&page).into_owned())
}

fn sections() -> Result<Roff> {
    let mut roff = Roff::new();
    roff.control("SH", ["CONFIGURATION"]);
    roff.text([roman(
        "TOML, where `gputop config path` says. A flag comes before the environment, and that before the file. \
         Tables stand behind all else.",
    )]);
    for def in SETTINGS {
        let name = format!("{} = {}", def.name, def.example);
        entry(
            &mut roff,
            bold(name),
            &format!("{} ({})", def.help, def.default),
        );
    }
    for def in TABLES {
        let name = format!("[{}]  {}", def.name, def.example);
        entry(&mut roff, bold(name), def.help);
    }
    roff.control("SH", ["ENVIRONMENT"]);
    for def in SETTINGS {
        entry(
            &mut roff,
            bold(def.variable),
            &format!("The setting {}", def.name),
        );
    }
    for (name, help) in VARIABLES {
        entry(&mut roff, bold(*name), help);
    }
    roff.control("SH", ["THEMES"]);
    for def in PALETTES {
        entry(&mut roff, bold(def.name), def.help);
    }
    roff.control("SH", ["KEYS"]);
    let keymap = Keymap::parse(DEFAULT)?;
    for def in ACTIONS {
        let keys = keymap.keys(def.action).iter().map(|key| show_key(key));
        let keys = keys.collect::<Vec<_>>().join(", ");
        entry(
            &mut roff,
            bold(keys),
            &format!("{} ({})", def.help, def.name),
        );
    }
    Ok(roff)
}

fn entry(roff: &mut Roff, name: Inline, text: &str) {
    roff.control("TP", []);
    roff.text([name]);
    roff.text([roman(text)]);
}
