//! `--slurm JOB`: the nodes of a job of Slurm, by `squeue`.

use std::io;
use std::process::Command;

use color_eyre::Result;
use color_eyre::eyre::bail;

use crate::model::text::{quoted, visible};
use crate::source::remote::Target;
use crate::source::remote::slurm::{Step, names};

/// A job of an array that runs has a line of its own: `81234|RUNNING|None|node[1-2]`.
const FORMAT: &str = "%A|%T|%r|%N";

/// Every node of the job, once.
///
/// # Errors
/// When it is no job, has no nodes yet or no more, or Slurm is not here.
pub fn targets(job: &str) -> Result<Vec<Target>> {
    let is_digits = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    // `81234`, of an array `81234_7`, of a heterogeneous job `81234+1`.
    let is_job = match job.split_once(['_', '+']) {
        Some((job, part)) => is_digits(job) && is_digits(part),
        None => is_digits(job),
    };
    if !is_job {
        bail!(
            "`{}` is no job of Slurm: --slurm takes its number, the first column of `squeue --me`",
            quoted(job)
        );
    }
    let steps = steps(job, &squeue(job)?)?;
    Ok(steps.into_iter().map(Target::Slurm).collect())
}

fn squeue(job: &str) -> Result<String> {
    let mut command = Command::new("squeue");
    command.args(["--noheader", "--jobs", job, "--format", FORMAT]);
    let output = match command.output() {
        Ok(output) => output,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            bail!(
                "`squeue` is not here, so the nodes of job {job} are not known: start gputop where Slurm's commands are, or name \
                 the nodes, `gputop NODE…`"
            );
        }
        Err(error) => bail!("`squeue` cannot be started: {error}"),
    };
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    if said.contains("Invalid job id") {
        bail!("Slurm knows no job {job}: `squeue --me` lists yours");
    }
    let said = said.lines().find(|line| !line.trim().is_empty());
    let said = visible(said.unwrap_or("nothing").as_bytes(), 160);
    bail!("the nodes of job {job} are not known; squeue says: {said}")
}

fn steps(job: &str, lines: &str) -> Result<Vec<Step>> {
    let mut steps: Vec<Step> = Vec::new();
    let mut waits = None;
    for line in lines.lines() {
        let mut words = line.trim().splitn(4, '|');
        let mut word = || words.next().unwrap_or_default();
        let (id, state, reason, list) = (word(), word(), word(), word());
        if !matches!(state, "RUNNING" | "SUSPENDED") {
            waits.get_or_insert_with(|| (quoted(state), quoted(reason)));
            continue;
        }
        let Some(nodes) = names(list) else {
            bail!(
                "`{}` is no list of nodes, which job {job} runs on",
                quoted(list)
            );
        };
        for node in nodes {
            // The tasks of an array may share one.
            if !steps.iter().any(|step| step.node == node) {
                let job = id.to_owned();
                steps.push(Step { job, node });
            }
        }
    }
    match waits {
        _ if !steps.is_empty() => Ok(steps),
        Some((state, reason)) if state == "PENDING" => {
            bail!("job {job} is pending ({reason}): it has nodes once it runs")
        }
        Some((state, _)) => bail!("job {job} is {}: it runs on no node", state.to_lowercase()),
        None => bail!("job {job} has ended: it runs on no node any more"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_are_those_of_all_that_runs_of_a_job_each_once() {
        let lines = "501|RUNNING|None|n[1-2]\n502|RUNNING|None|n[2-3]\n500|PENDING|Resources|\n";
        let steps = steps("500", lines).expect("it runs");
        let of: Vec<_> = steps
            .iter()
            .map(|step| (step.job.as_str(), step.node.as_str()))
            .collect();
        assert_eq!(of, [("501", "n1"), ("501", "n2"), ("502", "n3")]);
    }

    #[test]
    fn a_job_without_nodes_is_told_in_one_sentence() {
        let why = |lines| steps("7", lines).expect_err("it has none").to_string();
        assert_eq!(
            why("7|PENDING|Priority|\n"),
            "job 7 is pending (Priority): it has nodes once it runs"
        );
        assert_eq!(
            why("7|COMPLETING|None|n1\n"),
            "job 7 is completing: it runs on no node"
        );
        assert_eq!(why(""), "job 7 has ended: it runs on no node any more");
        assert_eq!(
            why("7|RUNNING|None|\u{1b}[2J\n"),
            "`^[[2J` is no list of nodes, which job 7 runs on"
        );
        for wrong in ["", "x", "7;id", "-7", "7_", "7_1_2"] {
            assert!(
                targets(wrong).is_err_and(|why| why.to_string().contains("is no job of Slurm")),
                "{wrong}"
            );
        }
    }
}
