//! The reference as Markdown, which is committed as `docs/REFERENCE.md`; a test compares the two.

use std::fmt::Write as _;

use clap::{Arg, Command};

use super::VARIABLES;
use crate::cli::settings::definition::{SETTINGS, TABLES};
use crate::tui::action::{ACTIONS, Scope};
use crate::tui::keymap::{DEFAULT, Keymap};
use crate::tui::palette::PALETTES;
use crate::tui::role::ROLES;

pub fn markdown(program: &Command) -> String {
    let mut out = String::from(
        "# Reference\n\nWritten by `gputop generate markdown` from the definitions that the program runs by.\n\n## Commands\n",
    );
    let shared: Vec<&Arg> = program
        .get_arguments()
        .filter(|arg| arg.is_global_set())
        .collect();
    command(&mut out, program, &[]);
    for sub in program.get_subcommands() {
        commands(&mut out, sub, &shared);
    }
    settings(&mut out);
    keys(&mut out);
    themes(&mut out);
    out
}

/// A command and those below it; what the whole program takes is not said again.
fn commands(out: &mut String, here: &Command, shared: &[&Arg]) {
    if here.is_hide_set() {
        return;
    }
    command(out, here, shared);
    for sub in here.get_subcommands() {
        commands(out, sub, shared);
    }
}

fn command(out: &mut String, command: &Command, shared: &[&Arg]) {
    let name = command.get_bin_name().unwrap_or(command.get_name());
    let about = command.get_about().map(ToString::to_string);
    let _ = writeln!(out, "\n### `{name}`\n\n{}.", about.unwrap_or_default());
    let is_shared = |arg: &Arg| shared.iter().any(|known| known.get_id() == arg.get_id());
    let is_usual = |arg: &Arg| matches!(arg.get_id().as_str(), "help" | "version");
    let rows: Vec<Vec<String>> = command
        .get_arguments()
        .filter(|arg| !arg.is_hide_set() && !is_shared(arg) && !is_usual(arg))
        .map(|arg| vec![code(&arg_words(arg)), arg_help(arg)])
        .collect();
    if !rows.is_empty() {
        out.push('\n');
        table(out, &["argument", "meaning"], &rows);
    }
}

/// `-i, --interval INTERVAL`, `--ascii`, `[PATH]...`
fn arg_words(arg: &Arg) -> String {
    let mut flags = Vec::new();
    flags.extend(arg.get_short().map(|short| format!("-{short}")));
    flags.extend(arg.get_long().map(|long| format!("--{long}")));
    if flags.is_empty() {
        return arg.to_string();
    }
    let value = arg
        .get_value_names()
        .filter(|_| arg.get_action().takes_values())
        .map(|names| match arg.is_require_equals_set() {
            true => format!("[={}]", names.join(" ")),
            false => format!(" {}", names.join(" ")),
        });
    flags.join(", ") + &value.unwrap_or_default()
}

fn arg_help(arg: &Arg) -> String {
    let mut help = arg.get_help().map(ToString::to_string).unwrap_or_default();
    if arg.get_action().takes_values() {
        let values = arg.get_possible_values();
        let values: Vec<String> = values.iter().map(|value| code(value.get_name())).collect();
        if !values.is_empty() {
            let _ = write!(help, ": {}", values.join(", "));
        }
        let defaults = arg.get_default_values().iter();
        let defaults: Vec<String> = defaults.map(|d| code(&d.to_string_lossy())).collect();
        if !defaults.is_empty() {
            let _ = write!(help, " (default {})", defaults.join(", "));
        }
    }
    help
}

fn settings(out: &mut String) {
    out.push_str(
        "\n## Configuration\n\nTOML, where `gputop config path` says. A flag comes before the environment, and that before the file.\n\n",
    );
    let row = |def: &&crate::cli::settings::definition::SettingDef| {
        vec![
            code(&format!("{} = {}", def.name, def.example)),
            code(def.variable),
            code(def.flag),
            def.default.to_owned(),
            def.help.to_owned(),
        ]
    };
    let rows: Vec<_> = SETTINGS.iter().map(row).collect();
    table(
        out,
        &["key", "variable", "flag", "default", "meaning"],
        &rows,
    );
    out.push_str("\nTables, which stand behind all else:\n\n");
    let row = |def: &&crate::cli::settings::definition::TableDef| {
        vec![
            code(&format!("[{}]", def.name)),
            code(def.example),
            def.help.to_owned(),
        ]
    };
    let rows: Vec<_> = TABLES.iter().map(row).collect();
    table(out, &["table", "such as", "meaning"], &rows);
    out.push_str("\nOther variables:\n\n");
    let row = |(name, help): &(&str, &str)| vec![code(name), (*help).to_owned()];
    let rows: Vec<_> = VARIABLES.iter().map(row).collect();
    table(out, &["variable", "meaning"], &rows);
}

fn keys(out: &mut String) {
    out.push_str(
        "\n## Actions and keys\n\nIn the configuration `[keys]` gives an action other keys, a single one or a list, in place of those here; `[]` is \
         none. A key is a character or one of up down left right home end pgup pgdn enter esc tab backtab space backspace \
         delete f1…f12, with ctrl- before it.\n\n",
    );
    // A test holds that it can be read.
    let keymap = Keymap::parse(DEFAULT).ok();
    let row = |def: &crate::tui::action::ActionDef| {
        let keys = keymap.iter().flat_map(|keymap| keymap.keys(def.action));
        let keys: Vec<String> = keys.map(|key| code(key)).collect();
        let only = match def.scope {
            Scope::Everywhere => "",
            Scope::Recording => " (in a recording)",
        };
        vec![
            code(def.name),
            keys.join(" "),
            format!("{}{only}", def.help),
        ]
    };
    let rows: Vec<_> = ACTIONS.iter().map(row).collect();
    table(out, &["action", "keys", "meaning"], &rows);
}

fn themes(out: &mut String) {
    out.push_str("\n## Themes\n\n");
    let row = |def: &crate::tui::palette::PaletteDef| {
        let names = std::iter::once(&def.name).chain(def.aliases);
        let names: Vec<String> = names.map(|name| code(name)).collect();
        vec![names.join(", "), def.help.to_owned()]
    };
    let rows: Vec<_> = PALETTES.iter().map(row).collect();
    table(out, &["theme", "what it is"], &rows);
    out.push_str(
        "\nA theme of your own is `themes/NAME.toml` beside the configuration. It gives each of these roles a look, or begins with \
         another theme and says only what differs:\n\n```toml\nbase = \"dark\"\ndim = \"#8a8f98\"                              # or one of the 16: \"light-blue\", or \"208\", or \"default\"\n\
         title = { fg = \"#e8eaed\", bold = true }      # also bg, reversed, underlined\n```\n\n",
    );
    let row = |def: &crate::tui::role::RoleDef| vec![code(def.name), def.help.to_owned()];
    let rows: Vec<_> = ROLES.iter().map(row).collect();
    table(out, &["role", "what has its look"], &rows);
}

fn code(text: &str) -> String {
    format!("`{text}`")
}

fn table(out: &mut String, titles: &[&str], rows: &[Vec<String>]) {
    let _ = writeln!(out, "| {} |", titles.join(" | "));
    let _ = writeln!(out, "|{}", "---|".repeat(titles.len()));
    for row in rows {
        let cells: Vec<String> = row.iter().map(|cell| cell.replace('|', "\\|")).collect();
        let _ = writeln!(out, "| {} |", cells.join(" | "));
    }
}
