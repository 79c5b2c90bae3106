//! Options that override settings, in groups. Each subcommand includes only the groups that it uses, so that its help
//! lists no other options.

use std::path::PathBuf;

use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Args, Command, FromArgMatches, value_parser};
use toml::Value;

use super::definition::{FlagGroup, Kind, SETTINGS, SettingDef};

/// Settings from the command line, and the path of the configuration file given there.
#[derive(Debug, Clone, Default)]
pub struct Flags {
    pub config: Option<PathBuf>,
    /// Values of settings in order of precedence. If a setting occurs more than once, its first value applies.
    pub values: Vec<(&'static SettingDef, Value)>,
}

impl Flags {
    /// Reads the options of a subcommand and of the commands that contain it. Those after the subcommand take
    /// precedence.
    pub fn of(matches: &ArgMatches) -> Self {
        let values = SETTINGS.iter().filter_map(|def| {
            let value = match def.kind {
                _ if !is_given(matches, def.flag) => return None,
                Kind::Switch => (!def.flag.starts_with("--no-")).into(),
                Kind::Text => matches.get_raw(def.flag)?.next()?.to_str()?.into(),
            };
            Some((def, value))
        });
        let config = matches.try_get_one::<PathBuf>("config").ok().flatten().cloned();
        let mut flags = matches.subcommand().map_or_else(Self::default, |(_, sub)| Self::of(sub));
        flags.config = flags.config.or(config);
        flags.values.extend(values);
        flags
    }

    #[cfg(local)]
    pub fn text_of(&self, name: &str) -> Option<&str> {
        self.values.iter().find(|(def, _)| def.name == name)?.1.as_str()
    }
}

/// Returns true if the option exists and was given on the command line.
pub fn is_given(matches: &ArgMatches, id: &str) -> bool {
    let is_known = matches.try_contains_id(id).unwrap_or(false);
    is_known && matches.value_source(id) == Some(ValueSource::CommandLine)
}

/// Defines sets of options. The options of each pair of brackets are in the order of [`SETTINGS`].
macro_rules! option_sets {
    ($($(#[$meta:meta])* $name:ident: $([$($group:ident)*])*;)*) => {$(
        $(#[$meta])*
        #[derive(Debug, Clone)]
        pub struct $name;

        impl FromArgMatches for $name {
            fn from_arg_matches(_: &ArgMatches) -> Result<Self, clap::Error> {
                Ok(Self)
            }

            fn update_from_arg_matches(&mut self, _: &ArgMatches) -> Result<(), clap::Error> {
                Ok(())
            }
        }

        impl Args for $name {
            fn augment_args(command: Command) -> Command {
                let groups: &[&[FlagGroup]] = &[$(&[$(FlagGroup::$group),*]),*];
                command.args(groups.iter().flat_map(|groups| options(groups)))
            }

            fn augment_args_for_update(command: Command) -> Command {
                Self::augment_args(command)
            }
        }
    )*};
}

option_sets! {
    ConfigArgs: [Config];
    /// Options of commands that sample a host repeatedly.
    SamplingArgs: [Sampling];
    /// Options of commands that open a screen.
    ScreenArgs: [Config] [Screen Glyphs];
    /// Options of commands that play a recording.
    RecordingViewArgs: [Config] [Screen Glyphs] [Overview];
    /// Options of commands that watch processes.
    NotificationArgs: [Incidents Processes];
    /// All options that override settings, as used by the dashboard.
    SettingsArgs: [Sampling] [Config] [Screen Glyphs] [Overview] [Dashboard] [Incidents Processes];
}

#[cfg(local)]
option_sets! {
    /// Options for all drawn output, including printed tables.
    GlyphArgs: [Glyphs];
    /// Options of commands that detect incidents.
    IncidentArgs: [Incidents];
}

fn options(groups: &[FlagGroup]) -> Vec<Arg> {
    let config = Arg::new("config")
        .long("config")
        .value_name("FILE")
        .value_parser(value_parser!(PathBuf))
        .help("Read this configuration file instead of gputop/config.toml in the configuration directory (also GPUTOP_CONFIG)");
    let settings = SETTINGS.iter().filter(|def| groups.contains(&def.group)).map(|def| {
        let arg = Arg::new(def.flag).long(&def.flag[2..]).help(def.flag_help);
        (def.arg)(match def.kind {
            Kind::Switch => arg.action(ArgAction::SetTrue),
            Kind::Text => arg,
        })
    });
    groups.contains(&FlagGroup::Config).then_some(config).into_iter().chain(settings).collect()
}
