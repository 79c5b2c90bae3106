//! `gputop config`: prints the resolved settings with their origins, checks the configuration file, or prints its path.

use std::fmt::Write as _;

use clap::Subcommand;
use color_eyre::Result;

use super::print::print;
use super::settings::definition::{HOSTS, KEYS, Kind, TableDef};
use super::settings::{ConfigArgs, ConfigPath, Flags, Origin, Settings, SettingsArgs, Themes};
use crate::tui::action::ACTIONS;

#[derive(Debug, clap::Args)]
#[group(skip)]
pub struct Args {
    #[command(subcommand)]
    command: ConfigCommand,
}

#[derive(Debug, Clone, Subcommand)]
enum ConfigCommand {
    /// Print the resolved settings as TOML, with the origin of each
    #[command(after_help = "Example:\n  gputop config print --theme light")]
    Print(SettingsArgs),
    /// Check the configuration file and your themes; exit with 2 on an error
    #[command(after_help = "Example:\n  gputop config check --config new.toml")]
    Check(ConfigArgs),
    /// Print the path of the configuration file, even if the file does not exist
    #[command(after_help = "Example:\n  $EDITOR $(gputop config path)")]
    Path(ConfigArgs),
}

pub fn run(args: &Args, flags: &Flags) -> Result<u8> {
    let path = || ConfigPath::find(flags.config.as_deref());
    match &args.command {
        ConfigCommand::Print(_) => {
            let settings = Settings::read(flags)?;
            print(&resolved(&settings))?;
            if let Some(why) = settings.unread {
                return Err(why.into());
            }
        }
        ConfigCommand::Check(_) => {
            Settings::read(flags)?;
            let config = path()?;
            let themes = Themes::beside(&config.path);
            for name in themes.own() {
                themes.read(&name)?;
            }
            print(&valid(&config))?;
        }
        ConfigCommand::Path(_) => print(&format!("{}\n", path()?.path.display()))?,
    }
    Ok(0)
}

fn valid(config: &ConfigPath) -> String {
    let path = config.path.display();
    if config.path.exists() {
        format!("{path} is valid\n")
    } else {
        format!("{path} does not exist; the defaults apply\n")
    }
}

fn resolved(settings: &Settings) -> String {
    let mut out = String::new();
    for (def, value, origin) in settings.resolved() {
        let derived = match (&origin, def.kind) {
            (Origin::Default, Kind::Switch) => format!(", {}", def.default()),
            _ => String::new(),
        };
        let _ = writeln!(out, "# {}\n{} = {value}  # {origin}{derived}\n", def.help, def.name);
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
