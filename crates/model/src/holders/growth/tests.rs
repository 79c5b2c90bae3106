use super::*;
use crate::units::{Pid, StartTicks};

const MIB: u64 = 1 << 20;

fn group(name: &str, mib: u64) -> HolderGroup {
    HolderGroup {
        class: HolderClass::SavedForBackward,
        name: name.into(),
        bytes: Bytes(mib * MIB),
        count: mib / 2,
        ..HolderGroup::default()
    }
}

fn reading(seconds: u64, groups: Vec<HolderGroup>) -> Holders {
    Holders {
        process: ProcessKey { pid: Pid(418), start: StartTicks(7) },
        at: Mono(1_000_000 + seconds * 1_000),
        allocated: Bytes(groups.iter().map(|group| group.bytes.0).sum()),
        groups,
        ..Holders::default()
    }
}

/// Returns a group's growth, given its size in MiB in readings taken every 30 s. A size of 0 means that the group
/// is missing from that reading.
fn after(name: &str, sizes: &[u64]) -> Option<GroupGrowth> {
    let mut growth = HolderGrowth::default();
    for (i, &mib) in (0..).zip(sizes) {
        let groups = Some(group(name, mib)).filter(|group| group.bytes > Bytes(0));
        growth.push(&reading(i * 30, groups.into_iter().collect()));
    }
    growth.of(&group(name, *sizes.last()?))
}

fn rate_after(name: &str, sizes: &[u64]) -> Option<u64> {
    let rate = after(name, sizes)?.rate?;
    Some(rate.bytes_per_minute.0 / MIB)
}

#[test]
fn a_container_that_grew_in_three_readings_is_growing() {
    assert_eq!(after("history[*]", &[100]), None);
    let two = after("history[*]", &[100, 160]);
    let expected = GroupGrowth { bytes: 60 * MIB as i64, count: 30, rate: None };
    assert_eq!(two, Some(expected));
    assert_eq!(rate_after("history[*]", &[100, 160, 220]), Some(120));
}

#[test]
fn phases_of_a_training_step_are_not_growth() {
    // A group outside a Python container may grow twice in a row by chance.
    assert_eq!(rate_after("loss", &[100, 160, 220]), None);
    assert_eq!(rate_after("loss", &[100, 160, 220, 280, 340]), Some(120));
    for sawtooth in [
        &[100, 160, 220, 100, 160, 220, 280, 340][..],
        &[100, 160, 160, 220, 280, 340],
        &[300, 160, 220, 280, 340, 400, 460],
    ] {
        assert_eq!(rate_after("history[*]", sawtooth), None, "{sawtooth:?}");
    }
    // The drop from 500 MiB is no longer among the compared readings.
    let recovered: Vec<u64> = [500].into_iter().chain(10..=10 + MAX_READINGS as u64).collect();
    assert_eq!(rate_after("history[*]", &recovered), Some(2));
}

#[test]
fn new_groups_grow_only_after_their_appearance() {
    let appeared = after("history[*]", &[0, 0, 100]);
    assert_eq!(appeared.map(|growth| growth.bytes), Some(100 * MIB as i64));
    assert_eq!(rate_after("history[*]", &[0, 0, 100]), None);
    assert_eq!(rate_after("history[*]", &[0, 0, 100, 160]), None);
    // The 100 MiB in the group's first reading do not count toward the rate.
    assert_eq!(rate_after("history[*]", &[0, 0, 100, 101, 102]), Some(2));
    // A group that disappears in one reading is not growing.
    assert_eq!(rate_after("history[*]", &[100, 0, 110, 120, 130]), None);
}

#[test]
fn rates_follow_the_time_between_readings() {
    let mut growth = HolderGrowth::default();
    for (seconds, mib) in [(0, 100), (600, 130), (660, 133)] {
        growth.push(&reading(seconds, vec![group("history[*]", mib)]));
    }
    let now = growth.of(&group("history[*]", 133)).and_then(|growth| growth.rate);
    assert_eq!(now.map(|rate| rate.bytes_per_minute), Some(Bytes(3 * MIB)));
    // Adding the same reading twice changes nothing, and an earlier reading restarts the comparison.
    growth.push(&reading(660, vec![group("history[*]", 133)]));
    assert!(growth.of(&group("history[*]", 133)).is_some_and(|g| g.rate.is_some()));
    growth.push(&reading(5, vec![group("history[*]", 133)]));
    assert_eq!(growth.of(&group("history[*]", 133)), None);
}

#[test]
fn incomplete_readings_do_not_count_for_growth() {
    let mut growth = HolderGrowth::default();
    let mut push = |seconds, mib, is_incomplete| {
        let group = group("history[*]", mib);
        let holders = Holders { is_incomplete, ..reading(seconds, vec![group.clone()]) };
        growth.push(&holders);
        growth.of(&group)
    };
    for (seconds, mib) in [(0, 100), (30, 120)] {
        push(seconds, mib, false);
    }
    // The reading at 60 s is incomplete: a part of the history is missing.
    assert_eq!(push(60, 50, true), None);
    let change = push(90, 160, false).expect("a change");
    assert_eq!(change.bytes, 40 * MIB as i64);
    let rate = change.rate.expect("a rate");
    assert_eq!(rate.bytes_per_minute, Bytes(40 * MIB));
}

#[test]
fn groups_differ_by_class_and_device() {
    let mut growth = HolderGrowth::default();
    let variable = |mib| HolderGroup { class: HolderClass::Variable, ..group("history[*]", mib) };
    let second = |mib| HolderGroup { ordinal: 1, ..group("history[*]", mib) };
    for (seconds, mib) in [(0, 10), (30, 20), (60, 30)] {
        growth.push(&reading(
            seconds,
            vec![group("history[*]", mib), variable(50), second(90 - mib)],
        ));
    }
    let rate = |group| growth.of(&group).and_then(|growth| growth.rate);
    assert!(rate(group("history[*]", 30)).is_some());
    assert_eq!(rate(variable(50)), None);
    assert_eq!(rate(second(60)), None);
}

#[test]
fn containers_are_found_in_names() {
    for (name, expected) in [
        ("trainer.history[*]", Some("trainer.history")),
        ("trainer.cache['step_*']", Some("trainer.cache")),
        ("cache['a'][*].loss", Some("cache['a']")),
        ("rows[*][*]", Some("rows")),
        ("model.layers.*.weight", None),
        ("cache['a']", None),
        ("loss", None),
        ("[*", None),
        ("", None),
    ] {
        assert_eq!(container(name), expected, "{name}");
    }
}

#[test]
fn advice_names_only_what_keeps_the_group_alive() {
    let rate = GrowthRate { bytes_per_minute: Bytes(MIB), blocks_per_minute: 12 };
    let words = |class, name: &str| {
        let group = HolderGroup { class, ..group(name, 1) };
        advice(&group, rate)
    };
    let graph = words(HolderClass::SavedForBackward, "trainer.history[*]").expect("advice");
    for part in ["`trainer.history[*]`", ".item()", ".detach()", "torch.no_grad()"] {
        assert!(graph.contains(part), "{graph}");
    }
    assert_eq!(
        words(HolderClass::Variable, "trainer.cache['step_*']").as_deref(),
        Some("`trainer.cache` gains 12 tensors a minute")
    );
    assert_eq!(words(HolderClass::Variable, "hidden"), None);
    assert_eq!(words(HolderClass::SavedForBackward, ""), None);
    assert_eq!(words(HolderClass::Workspace, ""), None);
    assert_eq!(words(HolderClass::Parameter, "model.layers[*].w"), None);
}
