//! `gputop config`: the settings in force and where each was written; whether the configuration is right; where it is.

use std::fmt::Write as _;

use clap::Subcommand;
use color_eyre::Result;

use super::print;
use super::settings::definition::{HOSTS, KEYS, Kind, TableDef};
use super::settings::{ConfigPath, Origin, Settings, SharedArgs, Themes};
use crate::model::units::Millis;
use crate::tui::action::ACTIONS;

#[derive(Debug, clap::Args)]
#[group(skip)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Clone, Copy, Subcommand)]
enum Command {
    /// Print the settings in force as TOML, with where each was written
    Print,
    /// Say whether the configuration and your themes are right; exit 2 when it is not
    Check,
    /// Print where the configuration is, or would be
    Path,
}

pub fn run(args: &Args, shared: &SharedArgs, interval: Option<Millis>) -> Result<u8> {
    let place = || ConfigPath::find(shared.config.as_deref());
    match args.command {
        Command::Print => {
            let settings = Settings::read(shared, interval)?;
            print(&in_force(&settings))?;
            if let Some(why) = settings.unread {
                return Err(why.into());
            }
        }
        Command::Check => {
            Settings::read(shared, interval)?;
            let themes = Themes::beside(&place()?.path);
            for name in themes.own() {
                themes.read(&name)?;
            }
            print(&fine(&place()?))?;
        }
        Command::Path => print(&format!("{}\n", place()?.path.display()))?,
    }
    Ok(0)
}

fn fine(place: &ConfigPath) -> String {
    let path = place.path.display();
    if place.path.exists() {
        format!("{path} is right\n")
    } else {
        format!("{path} is not there; the defaults hold\n")
    }
}

fn in_force(settings: &Settings) -> String {
    let mut out = String::new();
    for (def, value, origin) in settings.in_force() {
        let derived = match (&origin, def.kind) {
            (Origin::Default, Kind::Switch) => format!(", {}", def.default),
            _ => String::new(),
        };
        let _ = writeln!(
            out,
            "# {}\n{} = {value}  # {origin}{derived}\n",
            def.help, def.name
        );
    }
    table(&mut out, &KEYS);
    for def in ACTIONS {
        let keys = toml::Value::from(settings.keymap.keys(def.action).to_vec());
        let origin = settings.origin_of_keys(def.name);
        let _ = writeln!(out, "{} = {keys}  # {origin}", def.name);
    }
    out.push('\n');
    table(&mut out, &HOSTS);
    for group in &settings.groups {
        let _ = writeln!(out, "{group}");
    }
    out
}

fn table(out: &mut String, def: &TableDef) {
    let _ = writeln!(out, "# {}\n[{}]", def.help, def.name);
}
