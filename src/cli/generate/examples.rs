//! The example at the end of each help.

use clap::Command;

/// Returns the lines of the example at the end of a command's help.
pub(super) fn examples(command: &Command) -> Vec<String> {
    let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
    let lines = help.lines().skip_while(|line| *line != "Example:").skip(1);
    lines.map(|line| line.trim().to_owned()).collect()
}
