//! Nodes of a Slurm job: expands node lists, and builds the command to reach a node.

use std::process::Command;

use crate::open_files::restore_in;

const MAX_NODES: usize = 4_096;
/// Maximum number of digits in one number of a node list.
const MAX_DIGITS: usize = 18;

/// A Slurm node that is reached through a job step. The step sees only the job's GPUs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    pub job: String,
    pub node: String,
}

impl Step {
    /// Returns a command that runs the shell command `remote` in the job without allocating resources.
    pub(super) fn command(&self, remote: &str) -> Command {
        let mut command = Command::new("srun");
        // Run a single task outside MPI, not bound to a core.
        command.args(["--overlap", "--nodes=1", "--ntasks=1", "--mpi=none", "--cpu-bind=none"]);
        command.args([format!("--jobid={}", self.job), format!("--nodelist={}", self.node)]);
        command.args(["sh", "-c", remote]);
        restore_in(&mut command);
        command
    }
}

/// Expands `node[01-03,7],login` into names, in list order. Returns `None` if the text is not a Slurm node list.
///
/// Works like `scontrol show hostnames`: a range has leading zeros if its first number does, and a name may have
/// several pairs of brackets.
pub fn names(list: &str) -> Option<Vec<String>> {
    let mut names = Vec::new();
    for entry in parts(list)? {
        let mut prefixes = vec![String::new()];
        let mut rest = entry;
        while let Some((before, behind)) = rest.split_once('[') {
            let (inside, after) = behind.split_once(']')?;
            let numbers = numbers(inside)?;
            if prefixes.len().checked_mul(numbers.len())? > MAX_NODES {
                return None;
            }
            let mut each = Vec::new();
            for name in &prefixes {
                each.extend(numbers.iter().map(|number| format!("{name}{before}{number}")));
            }
            (prefixes, rest) = (each, after);
        }
        names.extend(prefixes.into_iter().map(|name| name + rest));
        if names.len() > MAX_NODES {
            return None;
        }
    }
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    let is_name =
        |name: &String| !name.is_empty() && !name.starts_with('-') && name.chars().all(is_plain);
    names.iter().all(is_name).then_some(names)
}

/// Splits a list at commas outside brackets.
fn parts(list: &str) -> Option<Vec<&str>> {
    let (mut parts, mut begin, mut is_open) = (Vec::new(), 0, false);
    for (at, c) in list.char_indices() {
        match c {
            '[' if !is_open => is_open = true,
            ']' if is_open => is_open = false,
            '[' | ']' => return None,
            ',' if !is_open => {
                parts.push(&list[begin..at]);
                begin = at + 1;
            }
            _ => {}
        }
    }
    parts.push(&list[begin..]);
    (!is_open).then_some(parts)
}

/// Expands a bracketed list: `01-03,7` → `01`, `02`, `03`, `7`.
fn numbers(inside: &str) -> Option<Vec<String>> {
    let mut numbers = Vec::new();
    for range in inside.split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let is_number = |text: &str| {
            (1..=MAX_DIGITS).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_digit())
        };
        if !is_number(first) || !is_number(last) {
            return None;
        }
        let width = first.len();
        let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
        if last < first || last - first >= MAX_NODES - numbers.len() {
            return None;
        }
        numbers.extend((first..=last).map(|number| format!("{number:0width$}")));
    }
    Some(numbers)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn expands_node_lists_like_slurm() {
        let of = |list| names(list).map(|names| names.join(" "));
        assert_eq!(of("node7").as_deref(), Some("node7"));
        assert_eq!(
            of("gpu[08-11,3],login-a").as_deref(),
            Some("gpu08 gpu09 gpu10 gpu11 gpu3 login-a")
        );
        assert_eq!(of("r[1-2]n[0-1]-ib").as_deref(), Some("r1n0-ib r1n1-ib r2n0-ib r2n1-ib"));
        for wrong in [
            "",
            "a,",
            "n[1",
            "n]1[",
            "n[]",
            "n[2-1]",
            "n[a]",
            "n[1-99999]",
            "n[0-999]x[0-999]",
            "-w",
            "a b",
            "a;b",
            "(null)",
        ] {
            assert_eq!(of(wrong), None, "{wrong}");
        }
    }

    proptest! {
        #[test]
        fn limits_the_number_of_nodes(list in "[a-c0-9,\\[\\]-]{0,40}") {
            prop_assert!(names(&list).is_none_or(|names| names.len() <= MAX_NODES));
        }
    }
}
