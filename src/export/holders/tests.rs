use gputop_model::process::ProcessKey;
use gputop_model::units::Mono;

use super::*;
use crate::dashboard::holder_growth::growth_note;

const MIB: u64 = 1 << 20;

fn group(class: HolderClass, name: &str, mib: u64) -> HolderGroup {
    HolderGroup {
        class,
        name: name.into(),
        count: mib,
        bytes: Bytes(mib * MIB),
        ..HolderGroup::default()
    }
}

/// Creates holders in which `trainer.history` keeps a graph of `graph` MiB alive.
fn reading(minute: u64, graph: u64) -> Holders {
    let groups = vec![
        group(HolderClass::OptimizerState, "opt.state[*]['exp_avg']", 210),
        group(HolderClass::OptimizerState, "opt.state[*]['exp_avg_sq']", 200),
        group(HolderClass::Parameter, "model.layers.*.weight", 210),
        group(HolderClass::SavedForBackward, "trainer.history[*]", graph),
        group(HolderClass::SavedForBackward, "loss", 1),
        group(HolderClass::Workspace, "", 379 - graph),
    ];
    Holders {
        process: ProcessKey::default(),
        at: Mono(1 + minute * 60_000),
        allocated: Bytes(groups.iter().map(|group| group.bytes.0).sum()),
        groups,
        ..Holders::default()
    }
}

fn after(readings: &[Holders]) -> (String, Vec<String>) {
    let mut growth = HolderGrowth::default();
    readings.iter().for_each(|reading| growth.push(reading));
    let last = readings.last().expect("a reading");
    (sentence(last, &growth), advice_lines(last, &growth))
}

#[test]
fn sentence_names_the_largest_holders() {
    assert_eq!(
        after(&[reading(0, 190)]),
        (
            "Optimizer state 41 %, parameters 21 %, graph kept alive by `trainer.history[*]` 19 %."
                .into(),
            vec![]
        )
    );
    let empty = Holders::default();
    let (sentence, _) = after(&[empty]);
    assert_eq!(sentence, "PyTorch has allocated no GPU memory.");
}

#[test]
fn sentence_names_a_growing_group_even_if_it_is_small() {
    let (sentence, advice_lines) = after(&[reading(0, 1), reading(1, 3), reading(2, 5)]);
    assert_eq!(
        sentence,
        "Optimizer state 41 %, blocks without a tensor 37 %, graph kept alive by `trainer.history[*]` <1 % and growing \
             2.00 MiB a minute."
    );
    assert_eq!(advice_lines.len(), 1);
    assert!(
        advice_lines[0].starts_with("`trainer.history[*]` keeps autograd graphs alive"),
        "{advice_lines:?}"
    );
    let (sentence, _) = after(&[reading(0, 0), reading(1, 120), reading(2, 240)]);
    assert!(sentence.contains("24 % and growing 120 MiB a minute, parameters"), "{sentence}");
}

#[test]
fn note_names_the_group_that_grows_fastest() {
    let note = |readings: &[Holders]| {
        let mut growth = HolderGrowth::default();
        readings.iter().for_each(|reading| growth.push(reading));
        growth_note(readings.last().expect("a reading"), &growth)
    };
    let readings = [reading(0, 1), reading(1, 36), reading(2, 71)];
    assert_eq!(note(&readings[..2]), None);
    let expected = "grows: trainer.history[*], 2.05 GiB/h";
    assert_eq!(note(&readings), Some((0, expected.into())));
    let incomplete = Holders { is_incomplete: true, ..reading(3, 106) };
    let readings: Vec<Holders> = readings.into_iter().chain([incomplete]).collect();
    assert_eq!(note(&readings), None);
}

#[test]
fn estimates_state_their_assumptions() {
    let saved = HolderGroup {
        tensors: vec![HeldTensor {
            bytes: Bytes::mib(64),
            shape: vec![8, 512],
            ..HeldTensor::default()
        }],
        ..group(HolderClass::SavedForBackward, "loss", 64)
    };
    let holders = Holders {
        groups: vec![saved, group(HolderClass::Parameter, "model.weight", 100)],
        ..Holders::default()
    };
    let [activations, fits] = &estimates(&holders, Some(Bytes::mib(33)))[..] else {
        panic!("two sentences");
    };
    assert_eq!(
        activations,
        "Activations take 8.00 MiB per sample at a batch size of 8, if the first dimension of the saved tensors is the \
             batch size. Parameters, gradients and optimizer state take 100 MiB."
    );
    assert!(fits.starts_with("A batch size of 12 would just fit if"), "{fits}");
    assert_eq!(estimates(&holders, None).len(), 1);
    assert!(estimates(&Holders::default(), Some(Bytes::mib(33))).is_empty());
}

#[test]
fn sizes_have_three_digits() {
    for (size, expected) in [
        (Bytes(5), "5 bytes"),
        (Bytes::mib(120), "120 MiB"),
        (Bytes(12_900_000), "12.3 MiB"),
        (Bytes(1_288_490_189), "1.20 GiB"),
    ] {
        assert_eq!(rounded(size), expected);
    }
}

#[test]
fn tensors_are_listed_with_the_references_that_keep_them_alive() {
    let tensor = HeldTensor {
        name: "trainer.history[12]".into(),
        bytes: Bytes::mib(8),
        dtype: "float32".into(),
        shape: vec![2048, 1024],
        is_view: true,
        path: ["__main__", ".trainer", ".history", "[12]"].map(String::from).to_vec(),
        aliases: vec!["last".into()],
        ..HeldTensor::default()
    };
    let held = HolderGroup {
        tensors: vec![tensor],
        ..group(HolderClass::Variable, "trainer.history[*]", 16)
    };
    let holders = Holders { allocated: Bytes::mib(32), ..Holders::default() };
    assert_eq!(
        tensors(&holders, &held, true),
        "trainer.history[*]\n  variables, device 0: 16.00 MiB in 16 blocks, 50 %\n      8.00 MiB  float32  \
             2048x1024  trainer.history[12] (view)\n                kept alive by __main__ > .trainer > .history > \
             [12]\n                also last\n  and 15 smaller blocks\n"
    );
    assert!(!tensors(&holders, &held, false).contains("alive"));
}
