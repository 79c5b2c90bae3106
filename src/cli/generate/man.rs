//! Man pages: the options and examples of a command, and for `gputop` itself also its settings, keys and themes.

use clap::Command;
use clap::builder::Resettable;
use clap_mangen::Man;
use clap_mangen::roff::{Inline, Roff, bold, roman};
use color_eyre::Result;
use color_eyre::eyre::bail;
use gputop_model::nearest_name::instead_of;

use crate::cli::generate::examples::examples;
use crate::cli::generate::variables::VARIABLES;
use crate::cli::settings::definition::{SETTINGS, TABLES};
use crate::tui::action::ACTIONS;
use crate::tui::keymap::show_key;
use crate::tui::palette::PALETTES;

pub fn page(program: Command, path: &[String]) -> Result<String> {
    let mut command = &program;
    for name in path {
        let names = command.get_subcommands().map(Command::get_name);
        let Some(next) = command.find_subcommand(name) else {
            bail!("unknown command `{name}`; {}", instead_of(name, names));
        };
        command = next;
    }
    let mut page = Vec::new();
    // Remove the examples from the help text, because the page has its own section for them. clap_mangen would put them
    // in a section named EXTRA.
    Man::new(command.clone().after_help(Resettable::Reset)).render(&mut page)?;
    if path.is_empty() {
        sections()?.to_writer(&mut page)?;
    }
    let mut commands = vec![command];
    if path.is_empty() {
        commands.extend(program.get_subcommands().filter(|sub| !sub.is_hide_set()));
    }
    example_section(&commands).to_writer(&mut page)?;
    Ok(String::from_utf8_lossy(&page).into_owned())
}

fn example_section(commands: &[&Command]) -> Roff {
    let mut roff = Roff::new();
    roff.control("SH", ["EXAMPLES"]);
    for command in commands {
        let about = command.get_about().map(ToString::to_string);
        roff.control("PP", []);
        roff.text([roman(format!("{}:", about.unwrap_or_default()))]);
        // Print the examples indented, and turn off filling, which would join their lines.
        roff.control("RS", ["4"]);
        roff.control("nf", []);
        for line in examples(command) {
            roff.text([roman(line)]);
        }
        roff.control("fi", []);
        roff.control("RE", []);
    }
    roff
}

fn sections() -> Result<Roff> {
    let mut roff = Roff::new();
    roff.control("SH", ["CONFIGURATION"]);
    roff.text([roman(
        "A TOML file; `gputop config path` prints its path. Flags override environment variables, which override the \
         file. Tables must come after all other settings.",
    )]);
    for def in SETTINGS {
        let name = format!("{} = {}", def.name, def.example);
        entry(&mut roff, bold(name), &format!("{} (default: {})", def.help, def.default()));
    }
    for def in TABLES {
        let name = format!("[{}]  {}", def.name, def.example);
        entry(&mut roff, bold(name), def.help);
    }
    roff.control("SH", ["ENVIRONMENT"]);
    for def in SETTINGS {
        entry(&mut roff, bold(def.variable), &format!("The setting {}", def.name));
    }
    for (name, help) in VARIABLES {
        entry(&mut roff, bold(*name), help);
    }
    roff.control("SH", ["THEMES"]);
    for def in PALETTES {
        entry(&mut roff, bold(def.name), def.help);
    }
    roff.control("SH", ["KEYS"]);
    for def in ACTIONS {
        let keys = def.keys.iter().map(|key| show_key(key)).collect::<Vec<_>>().join(", ");
        entry(&mut roff, bold(keys), &format!("{} ({})", def.help, def.name));
    }
    Ok(roff)
}

fn entry(roff: &mut Roff, name: Inline, text: &str) {
    roff.control("TP", []);
    roff.text([name]);
    roff.text([roman(text)]);
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    use crate::cli::Cli;
    use crate::cli::generate::program;

    #[test]
    fn every_page_has_its_example_in_one_section() {
        for (path, line) in [
            (&[][..], "gputop explain slurm\\-81234.out"),
            (&["once"], "gputop once \\-\\-csv > sample.csv"),
            (&["config", "print"], "gputop config print \\-\\-theme light"),
        ] {
            let path: Vec<String> = path.iter().map(|name| (*name).to_owned()).collect();
            let page = page(program(&Cli::command()), &path).expect("a page");
            assert_eq!(page.matches(".SH EXAMPLES").count(), 1, "{page}");
            assert!(!page.contains(".SH EXTRA"), "{page}");
            assert!(page.lines().any(|found| found == line), "{page}");
        }
    }
}
