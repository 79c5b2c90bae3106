//! Completions: what clap writes for a shell, and the hosts, which are read when they are asked for.

use clap::builder::ValueHint;
use clap::{Arg, Command};
use clap_complete::Shell;

/// The command that says the hosts of this user.
const ASK: &str = "gputop generate hosts 2>/dev/null";
/// The argument that is a host.
pub const TARGETS: &str = "targets";

/// For `shell`; hosts where bash, fish or zsh is to be told of them.
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

/// Beside commands clap has no place for words that are none: where both may stand, zsh would be offered files.
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

/// The commands behind which no host stands, each followed by `between`.
fn hostless(program: &Command, between: &str) -> String {
    let commands = program.get_subcommands();
    let hostless = commands.filter(|command| !command.get_arguments().any(is_targets));
    let names: Vec<&str> = hostless.map(Command::get_name).collect();
    names.join(between)
}

/// The flags behind which something else than a host stands.
fn flags_with_values(program: &Command) -> String {
    let commands = program.get_subcommands().chain([program]);
    let with_hosts = commands.filter(|command| command.get_arguments().any(is_targets));
    let args = with_hosts.flat_map(Command::get_arguments);
    let mut flags: Vec<String> = args
        .filter(|arg| arg.get_action().takes_values())
        .flat_map(|arg| {
            let short = arg.get_short().map(|short| format!("-{short}"));
            let long = arg.get_long().map(|long| format!("--{long}"));
            short.into_iter().chain(long)
        })
        .collect();
    flags.sort();
    flags.dedup();
    flags.join("|")
}

fn bash(script: &str, program: &Command) -> String {
    let (flags, hostless) = (flags_with_values(program), hostless(program, "|"));
    let hosts = format!(
        "_gputop_hosts() {{
    _gputop \"$@\"
    local i cur=\"${{COMP_WORDS[COMP_CWORD]}}\"
    [[ $cur == -* ]] && return 0
    case \"${{COMP_WORDS[COMP_CWORD-1]}}\" in {flags}) return 0 ;; esac
    for ((i = 1; i < COMP_CWORD; i++)); do
        case \"${{COMP_WORDS[i]}}\" in {hostless}) return 0 ;; esac
    done
    COMPREPLY+=($(compgen -W \"$({ASK})\" -- \"$cur\"))
}}

"
    );
    hosts + &script.replace("complete -F _gputop ", "complete -F _gputop_hosts ")
}

fn fish(script: String, program: &Command) -> String {
    let hostless = hostless(program, " ");
    script
        + &format!(
            "complete -c gputop -n \"not __fish_seen_subcommand_from {hostless}\" -f -a \"({ASK})\" -d Host\n"
        )
}

fn zsh(script: &str, program: &Command) -> String {
    let hostless = hostless(program, "|");
    let function = format!(
        "_gputop_hosts() {{
    local -a hosts
    local expl
    hosts=(${{(f)\"$({ASK})\"}})
    _wanted hosts expl host compadd \"$@\" -a hosts
}}

_gputop() {{"
    );
    // The first word is a command or a host; where it is a host, so are those behind it.
    let first = "\":: :_gputop_commands\"";
    let first_word = "'::command:{_gputop_commands; _gputop_hosts}'";
    let rest = "    (gputop)\n";
    let other_words = format!(
        "{rest}        case $line[1] in ({hostless}|record) ;; (*) _gputop_hosts && ret=0; return ret ;; esac\n"
    );
    script
        .replacen("_gputop() {", &function, 1)
        .replacen(first, first_word, 1)
        .replacen(rest, &other_words, 1)
        .replace(":_hosts'", ":_gputop_hosts'")
}
