use clap::Command;

use super::subcommands::SUBCOMMANDS;
use super::*;

#[test]
fn every_visible_subcommand_is_listed() {
    let program = Cli::command();
    let shown = program.get_subcommands().filter(|command| !command.is_hide_set());
    let mut names: Vec<&str> = shown.map(Command::get_name).collect();
    let mut listed = SUBCOMMANDS.to_vec();
    names.sort_unstable();
    listed.sort_unstable();
    assert_eq!(names, listed);
}

fn each(command: &Command, visit: &mut impl FnMut(&Command)) {
    visit(command);
    for sub in command.get_subcommands().filter(|sub| !sub.is_hide_set()) {
        each(sub, visit);
    }
}

#[test]
fn every_help_ends_with_one_example_that_runs_the_command() {
    let mut program = Cli::command().disable_help_subcommand(true);
    program.build();
    each(&program, &mut |command| {
        let name = command.get_bin_name().unwrap_or_default().to_owned();
        let help = command.clone().render_long_help().to_string();
        assert_eq!(help.matches("Example:\n").count(), 1, "{name}: {help}");
        let example = help.split("Example:\n").nth(1).unwrap_or_default();
        assert!(example.contains(&name), "{name}: {example}");
        assert!(!example.contains("\n\n"), "{name}: {example}");
    });
}

#[test]
fn help_lists_only_options_that_apply() {
    let program = Cli::command();
    let options = |name: &str| -> Vec<String> {
        let command = program.find_subcommand(name).expect(name);
        let flags = command.get_arguments().filter_map(|arg| arg.get_long());
        flags.map(str::to_owned).collect()
    };
    let settings = [
        "config",
        "theme",
        "density",
        "ascii",
        "no-mouse",
        "readonly",
        "on-incident",
        "on-idle",
        "on-exit",
        "probe-interval",
        "interval",
    ];
    for (name, expected) in [
        ("explain", &[][..]),
        ("incidents", &[]),
        ("cards", &[]),
        ("generate", &[]),
        ("record", &["config", "on-incident", "on-idle", "on-exit", "interval"]),
        #[cfg(feature = "serve")]
        ("serve", &["config", "on-incident", "on-idle", "on-exit", "interval"]),
        ("demo", &["config", "theme", "density", "ascii", "no-mouse"]),
        ("snapshot", &["config", "theme", "ascii", "no-mouse"]),
        #[cfg(local)]
        ("once", &["config", "ascii", "interval"]),
        #[cfg(local)]
        ("run", &["config", "on-incident"]),
        #[cfg(local)]
        ("doctor", &["config"]),
        #[cfg(local)]
        ("allocator", &[]),
        #[cfg(local)]
        ("memory", &[]),
    ] {
        let options = options(name);
        let listed = settings.iter().filter(|s| options.iter().any(|o| o == *s));
        assert_eq!(listed.copied().collect::<Vec<_>>(), expected, "{name}");
    }
}

#[test]
fn rejects_options_that_the_subcommand_does_not_have() {
    let error = |args: &[&str]| match parsed(args.iter().copied()) {
        Err(error) => error.to_string(),
        Ok(cli) => panic!("{cli:?}"),
    };
    let refused = error(&["gputop", "--theme", "dark", "cards"]);
    assert!(refused.contains("option --theme does not apply to `gputop cards`"), "{refused}");
    assert!(error(&["gputop", "-i", "5", "demo"]).contains("option --interval"));
    for accepted in [
        &["gputop", "--theme", "dark", "demo"][..],
        &["gputop", "--config", "a", "config", "print"],
        &["gputop", "--theme", "dark"],
    ] {
        parsed(accepted.iter().copied()).expect("accepted");
    }
}

#[test]
fn options_after_the_subcommand_override_those_before_it() {
    let cli = parsed(["gputop", "--config", "a", "--theme", "dark", "demo", "--theme", "light"]);
    let flags = cli.expect("valid arguments").flags;
    assert_eq!(flags.config.as_deref(), Some("a".as_ref()));
    let first = flags.values.first().map(|(_, raw)| raw.to_string());
    assert_eq!(first.as_deref(), Some("\"light\""));
}
