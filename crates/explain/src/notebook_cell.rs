//! Translates environment variables in fixes from a command line to a cell of a notebook.

use gputop_model::incident::{Fix, FixKind};

use super::windows_shell::assignment;
use super::workload::SCRIPT;

/// Returns `fix` for a notebook if it sets variables of the user's own program. Other commands stay as they are.
#[must_use]
pub(super) fn translated(fix: Fix) -> Fix {
    match cell(&fix.change).filter(|_| fix.kind == FixKind::Env) {
        Some(change) => {
            let when = "in the first cell; restart the kernel and run it before torch is imported";
            let effects = [Some(when.to_owned()), fix.effect].into_iter().flatten();
            Fix { change, effect: Some(effects.collect::<Vec<_>>().join("; ")), ..fix }
        }
        None => fix,
    }
}

fn cell(command: &str) -> Option<String> {
    let mut rest = command;
    let mut lines = Vec::new();
    while let Some((name, value, after)) = assignment(rest) {
        lines.push(format!("%env {name}={value}"));
        rest = after;
    }
    (rest == SCRIPT && !lines.is_empty()).then(|| lines.join("\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_of_the_own_program_are_set_in_a_cell() {
        assert_eq!(cell("A=1 B=x:2 python train.py").as_deref(), Some("%env A=1\n%env B=x:2"));
        for command in ["A=1 vllm serve MODEL", "python train.py", "nvidia-smi"] {
            assert_eq!(cell(command), None, "{command}");
        }
    }
}
