//! Compares values that a log prints, such as labels with classes, or a GPU with the GPUs of a build.

use std::cmp::Ordering;
use std::collections::BTreeSet;
use std::sync::LazyLock;

use super::super::signature::Pattern;
use crate::evidence::case::{Case, EvidenceRule, Finding, supports};
use crate::values::largest_label;

pub(super) const EVIDENCE: &[EvidenceRule] = &[
    ("labels-exceed-classes", labels_exceed_classes),
    ("batch-is-one", batch_is_one),
    ("gpu-newer-than-build", |c| gpu_and_build(c, Ordering::Greater)),
    ("gpu-older-than-build", |c| gpu_and_build(c, Ordering::Less)),
    ("rank-0-silent", rank_0_silent),
    ("driver-parts-differ-in-release", driver_parts),
];

/// Returns the number of classes of the model that the program printed.
fn classes(text: &str) -> Option<u64> {
    static COUNT: LazyLock<Pattern> = LazyLock::new(|| {
        Pattern::new(concat!(
            r"(?i)\b(?<classes>\d{1,6}) (?:output channels|classes)\b",
            r#"|\b(?:num_?classes|n_classes|num_labels|nc)['"]?[ =:]{1,3}(?<classes_2>\d{1,6})\b"#
        ))
    });
    COUNT.groups(text)?.get("classes")?.as_str()?.parse().ok()
}

fn labels_exceed_classes(case: &Case<'_>) -> Option<Finding> {
    let (label, classes) = (largest_label(case.context)?, classes(case.context)?);
    supports(label >= classes, || format!("the log shows label {label} and {classes} classes"))
}

/// Checks whether the log shows a batch size of 1, which cannot be split.
fn batch_is_one(case: &Case<'_>) -> Option<Finding> {
    static ONE: LazyLock<Pattern> = LazyLock::new(|| {
        Pattern::new(concat!(
            r"(?i)(?:^|[\s'(\[-])(?:train_|micro_|per_device_train_|train )?batch[_ -]size",
            r#"(?: per device)?[^\d\n=:,]{0,30}['"]?[=: ]{1,3}1(?:[\s,'")\]}]|$)"#
        ))
    });
    supports(ONE.is_in(case.context), || "the batch size is 1".into())
}

/// Checks whether the GPU's compute capability is above or below all of those in the build.
fn gpu_and_build(case: &Case<'_>, order: Ordering) -> Option<Finding> {
    let field = |name: &str| case.found.get(name)?.as_str();
    let (gpu, build) = (field("capability")?, field("built_for")?);
    let number = |text: &str| -> Option<u32> {
        text.chars().filter(char::is_ascii_digit).collect::<String>().parse().ok()
    };
    let built: Vec<u32> = build.split(' ').filter_map(number).collect();
    let own = number(gpu)?;
    supports(!built.is_empty() && built.iter().all(|one| own.cmp(one) == order), || {
        format!("the GPU is {gpu}, the build supports {build}")
    })
}

/// Checks whether several ranks report an error in this log, but rank 0 does not.
fn rank_0_silent(case: &Case<'_>) -> Option<Finding> {
    let ranks = case.context.split("[Rank ").skip(1);
    let ranks = ranks.filter_map(|text| text.split_once(']')?.0.parse::<u32>().ok());
    let ranks: BTreeSet<u32> = ranks.collect();
    supports(*ranks.first()? > 0 && ranks.len() > 1, || {
        format!("{} ranks report it, but not rank 0", ranks.len())
    })
}

/// Checks whether libcuda and the kernel module belong to different releases of the driver. An update without a
/// restart usually stays within a release; libcuda of a container does not.
fn driver_parts(case: &Case<'_>) -> Option<Finding> {
    let field = |name: &str| case.found.get(name)?.as_str();
    let (module, library) = (field("module_version")?, field("libcuda_version")?);
    supports(module.split('.').next() != library.split('.').next(), || {
        format!("the kernel module is {module}, libcuda is {library}")
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::evidence::in_log;

    #[test]
    fn reads_the_largest_label_from_a_list_of_distinct_labels() {
        assert_eq!(largest_label("unique labels: tensor([0, 1, 7], device='cuda:0')"), Some(7));
        assert_eq!(largest_label("Unique mask values: [0. 255.]"), Some(255));
        assert_eq!(largest_label("mask shape: (512, 512)"), None);
        assert_eq!(classes("2 output channels (classes)"), Some(2));
        assert_eq!(classes("num_classes=19"), Some(19));
    }

    #[test]
    fn recognizes_a_batch_of_one() {
        let is_one = |context: &str| in_log(batch_is_one, context).is_some();
        for text in
            ["--train_batch_size=1 --x", "  batch size per device: 1", "micro_batch_size: 1,"]
        {
            assert!(is_one(text), "{text}");
        }
        for text in ["--per_device_eval_batch_size=1", "batch_size=16", "batch size: 12"] {
            assert!(!is_one(text), "{text}");
        }
    }
}
