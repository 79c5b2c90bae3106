//! Completion scripts: clap's own script for a shell, extended with hosts that are looked up on each completion.

use clap::builder::ValueHint;
use clap::{Arg, Command};
use clap_complete::Shell;

/// Shell command that prints this user's hosts.
const HOSTS: &str = "gputop generate hosts 2>/dev/null";
/// ID of the command-line argument that takes hosts.
pub const TARGETS: &str = "targets";

/// Returns the completion script for a shell. Only bash, fish and zsh complete hosts.
pub fn script(shell: Shell, program: &Command) -> String {
    let mut command = without_targets(program);
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut command, "gputop", &mut script);
    let script = String::from_utf8_lossy(&script).into_owned();
    match shell {
        Shell::Bash => bash(&script, program),
        Shell::Fish => fish(script, program),
        Shell::Zsh => zsh(&script, program),
        _ => script,
    }
}

/// Returns the program's definition without the host argument, because clap cannot complete subcommands and arguments
/// at the same position. With the argument, zsh would offer files there.
fn without_targets(program: &Command) -> Command {
    let args = program.get_arguments().filter(|arg| !is_targets(arg));
    let hint = |command: &Command| {
        let command = command.clone();
        if command.get_arguments().any(is_targets) {
            command.mut_arg(TARGETS, |arg| arg.value_hint(ValueHint::Hostname))
        } else {
            command
        }
    };
    Command::new("gputop")
        .version(env!("CARGO_PKG_VERSION"))
        .args(args.cloned())
        .subcommands(program.get_subcommands().map(hint))
}

fn is_targets(arg: &Arg) -> bool {
    arg.get_id() == TARGETS
}

/// Returns the names of commands that take no hosts, joined with `separator`.
fn without_hosts(program: &Command, separator: &str) -> String {
    let commands = program.get_subcommands();
    let commands = commands.filter(|command| !command.get_arguments().any(is_targets));
    commands.map(Command::get_name).collect::<Vec<&str>>().join(separator)
}

/// Returns the flags that take a value other than a host, joined with `|`.
fn flags_with_values(program: &Command) -> String {
    let commands = program.get_subcommands().chain([program]);
    let with_hosts = commands.filter(|command| command.get_arguments().any(is_targets));
    let args = with_hosts.flat_map(Command::get_arguments);
    let mut flags: Vec<String> = args
        .filter(|arg| arg.get_action().takes_values())
        .flat_map(|arg| {
            let short = arg.get_short().map(|short| format!("-{short}"));
            short.into_iter().chain(arg.get_long().map(|long| format!("--{long}")))
        })
        .collect();
    flags.sort_unstable();
    flags.dedup();
    flags.join("|")
}

fn bash(script: &str, program: &Command) -> String {
    let (flags, without_hosts) = (flags_with_values(program), without_hosts(program, "|"));
    let hosts = format!(
        "_gputop_hosts() {{
    _gputop \"$@\"
    local i cur=\"${{COMP_WORDS[COMP_CWORD]}}\"
    [[ $cur == -* ]] && return 0
    case \"${{COMP_WORDS[COMP_CWORD-1]}}\" in {flags}) return 0 ;; esac
    for ((i = 1; i < COMP_CWORD; i++)); do
        case \"${{COMP_WORDS[i]}}\" in {without_hosts}) return 0 ;; esac
    done
    COMPREPLY+=($(compgen -W \"$({HOSTS})\" -- \"$cur\"))
}}

"
    );
    hosts + &script.replace("complete -F _gputop ", "complete -F _gputop_hosts ")
}

fn fish(script: String, program: &Command) -> String {
    let without_hosts = without_hosts(program, " ");
    script
        + &format!(
            "complete -c gputop -n \"not __fish_seen_subcommand_from {without_hosts}\" -f -a \"({HOSTS})\" -d Host\n"
        )
}

fn zsh(script: &str, program: &Command) -> String {
    let without_hosts = without_hosts(program, "|");
    let function = format!(
        "_gputop_hosts() {{
    local -a hosts
    local expl
    hosts=(${{(f)\"$({HOSTS})\"}})
    _wanted hosts expl host compadd \"$@\" -a hosts
}}

_gputop() {{"
    );
    // The first word is a command or a host. All words after a host are hosts.
    let first = "\":: :_gputop_commands\"";
    let first_word = "'::command:{_gputop_commands; _gputop_hosts}'";
    let rest = "    (gputop)\n";
    let other_words = format!(
        "{rest}        case $line[1] in ({without_hosts}|record) ;; (*) _gputop_hosts && ret=0; return ret ;; esac\n"
    );
    script
        .replacen("_gputop() {", &function, 1)
        .replacen(first, first_word, 1)
        .replacen(rest, &other_words, 1)
        .replace(":_hosts'", ":_gputop_hosts'")
}
