use clap::Parser;

use super::*;

const TRANSFORMER: &str = include_str!("../../../tests/data/holders/transformer.json");

#[derive(Debug, Parser)]
struct Program {
    #[command(flatten)]
    args: Args,
}

fn args(line: &str) -> Args {
    Program::try_parse_from(format!("memory 418 {line}").split_whitespace())
        .expect("valid arguments")
        .args
}

/// Returns the output after `readings` more readings, 10 s apart. `trainer.history[*]` grows by 20 MiB in each.
fn output(line: &str, readings: u64) -> String {
    let mut growth = HolderGrowth::default();
    let mut holders: Holders = serde_json::from_str(TRANSFORMER).expect("a reading");
    for _ in 0..readings {
        growth.push(&holders);
        holders.at.0 += 10_000;
        let mut groups = holders.groups.iter_mut();
        let history = groups.find(|group| group.name == "trainer.history[*]");
        history.expect("a history").bytes.0 += Bytes::mib(20).0;
        holders.allocated.0 += Bytes::mib(20).0;
    }
    growth.push(&holders);
    args(line).output(&holders, &growth, None).expect("output")
}

#[test]
fn first_line_is_a_sentence_and_last_line_has_the_total() {
    let text = output("", 0);
    let lines: Vec<&str> = text.lines().collect();
    let first = "Optimizer state 41 %, parameters 23 %, gradients 21 %.";
    assert_eq!(lines.first(), Some(&first));
    assert!(lines.iter().all(|line| line.chars().count() <= 80), "{text}");
    let last = "PID 418  7.26 GiB allocated; exact, read in 610 ms";
    assert_eq!(lines.last(), Some(&last));
    for name in [
        "trainer.history[*]",
        "blocks without a tensor",
        "C++ tensors",
        "trainer.model.layers.*.mlp.up.weight",
    ] {
        assert!(text.contains(name), "{name}\n{text}");
    }
}

#[test]
fn groups_beyond_the_limit_are_summed_up() {
    let text = output("--top 5", 0);
    assert!(text.contains(" and 6 smaller groups: "), "{text}");
    assert!(!text.contains("model.rope"), "{text}");
}

#[test]
fn watching_names_what_grows_and_how_to_stop_it() {
    let text = output("--watch 10s", 3);
    let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
    for part in ["growing 120 MiB a minute", "+120.0", ".detach()"] {
        assert!(words.contains(part), "{part}\n{text}");
    }
    assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
}

#[test]
fn a_group_lists_its_tensors_and_the_references_to_them() {
    let text = output("--group HISTORY", 0);
    assert!(text.contains("kept alive by __main__ > .trainer > .history > [63]"), "{text}");
    assert!(text.contains("and 32 smaller blocks"), "{text}");
    assert!(!text.contains("exp_avg"), "{text}");
    assert!(output("--group parameter", 0).contains("also trainer.model.head.weight"));
    assert_eq!(output("--group nothing", 0), "");
    assert!(output("--tensors", 0).contains("trainer.cache['step_7']"));
}

#[test]
fn an_earlier_reading_shows_what_changed_since() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("earlier.json");
    let save = |line| std::fs::write(&file, output(line, 0)).expect("a file");
    save("--json");
    let earlier = saved_reading(&file).expect("a reading");
    let mut holders = earlier.clone();
    holders.at.0 += 90_000;
    let freed = holders.groups.remove(0);
    holders.groups[0].bytes.0 += Bytes::gib(1).0;
    holders.allocated.0 += Bytes::gib(1).0;
    holders.allocated.0 -= freed.bytes.0;
    let mut growth = HolderGrowth::default();
    growth.push(&earlier);
    growth.push(&holders);
    let output = |line| args(line).output(&holders, &growth, Some(&earlier));
    let text = output("").expect("text");
    let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
    for part in ["Since the reading 1m30s earlier:", "No longer allocated: ", "+1024"] {
        assert!(words.contains(part), "{part}\n{text}");
    }
    let json: serde_json::Value =
        serde_json::from_str(&output("--json").expect("JSON")).expect("JSON");
    assert_eq!(json["missing_groups"][0]["name"], freed.name);
    // An incomplete reading may lack tensors.
    let partial = Holders { is_incomplete: true, ..holders.clone() };
    let text = args("").output(&partial, &growth, Some(&earlier)).expect("text");
    assert!(text.contains("Groups are not compared") && !text.contains("No longer"), "{text}");

    save("--json --top 2");
    let error = saved_reading(&file).expect_err("part of a reading");
    assert!(error.to_string().contains("without --top"), "{error}");
    std::fs::write(&file, "{").expect("a file");
    let error = saved_reading(&file).expect_err("no reading");
    assert!(error.to_string().contains("is not a reading"), "{error}");
}

#[test]
fn json_contains_all_groups_and_their_growth() {
    let read = |line, readings| -> serde_json::Value {
        serde_json::from_str(&output(line, readings)).expect("JSON")
    };
    let reading = read("--json", 0);
    assert_eq!(reading["holders"]["groups"].as_array().map(Vec::len), Some(11));
    assert_eq!(reading["growth"], serde_json::Value::Null);
    let reading = read("--json --watch 10s --group history", 3);
    assert_eq!(reading["growth"][0]["rate"]["bytes_per_minute"], Bytes::mib(120).0);
    assert_eq!(output("--json --watch 10s", 1).lines().count(), 1);
    let failed = args("--json").failure_output(Pid(418), &Failure::NotTorch);
    let failed = failed.expect("JSON");
    assert!(failed.contains("no PyTorch with CUDA found"), "{failed}");
}

#[test]
fn a_reading_of_another_process_with_the_same_pid_is_refused() {
    let key = ProcessKey::new(418, 100);
    let check = |earlier, key| check_process(earlier, key).map_err(|error| error.to_string());
    assert_eq!((check(None, key), check(Some(key), key)), (Ok(()), Ok(())));
    let reused = "PID 418 now belongs to a different process than in the earlier reading";
    assert_eq!(check(Some(ProcessKey::new(418, 99)), key), Err(reused.into()));
    let other = "the earlier reading is of PID 7, not of PID 418";
    assert_eq!(check(Some(ProcessKey::new(7, 100)), key), Err(other.into()));
}
