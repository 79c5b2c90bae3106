//! Compares values that a log prints, such as labels with classes, or a GPU with the GPUs of a build.

use std::cmp::Ordering;
use std::collections::BTreeSet;
use std::sync::LazyLock;

use super::super::signature::Pattern;
use crate::evidence::case::{Case, EvidenceRule, Finding};
use crate::values::largest_label;

pub(super) const EVIDENCE: &[EvidenceRule] = &[
    EvidenceRule { name: "labels-exceed-classes", evaluate: labels_exceed_classes },
    EvidenceRule { name: "batch-is-one", evaluate: batch_is_one },
    EvidenceRule {
        name: "gpu-newer-than-build",
        evaluate: |c| gpu_and_build(c, Ordering::Greater),
    },
    EvidenceRule { name: "gpu-older-than-build", evaluate: |c| gpu_and_build(c, Ordering::Less) },
    EvidenceRule { name: "rank-0-silent", evaluate: rank_0_silent },
    EvidenceRule { name: "driver-parts-differ-in-release", evaluate: driver_parts },
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

fn labels_exceed_classes(case: &Case<'_>) -> Finding {
    match (largest_label(case.context), classes(case.context)) {
        (Some(label), Some(classes)) if label >= classes => {
            Finding::For(format!("the log shows label {label} and {classes} classes"))
        }
        _ => Finding::Silent,
    }
}

/// Checks whether the log shows a batch size of 1, which cannot be split.
fn batch_is_one(case: &Case<'_>) -> Finding {
    static ONE: LazyLock<Pattern> = LazyLock::new(|| {
        Pattern::new(concat!(
            r"(?i)(?:^|[\s'(\[-])(?:train_|micro_|per_device_train_|train )?batch[_ -]size",
            r#"(?: per device)?[^\d\n=:,]{0,30}['"]?[=: ]{1,3}1(?:[\s,'")\]}]|$)"#
        ))
    });
    if ONE.is_in(case.context) {
        Finding::For("the batch size is 1".into())
    } else {
        Finding::Silent
    }
}

/// Checks whether the GPU's compute capability is above or below all of those in the build.
fn gpu_and_build(case: &Case<'_>, order: Ordering) -> Finding {
    let field = |name: &str| case.found.get(name).and_then(serde_json::Value::as_str);
    let (Some(gpu), Some(build)) = (field("capability"), field("built_for")) else {
        return Finding::Silent;
    };
    // `sm_86` and `8.6` are the same capability.
    let number = |text: &str| -> Option<u32> {
        text.chars().filter(char::is_ascii_digit).collect::<String>().parse().ok()
    };
    let built: Vec<u32> = build.split(' ').filter_map(number).collect();
    match number(gpu) {
        Some(gpu_number)
            if !built.is_empty() && built.iter().all(|one| gpu_number.cmp(one) == order) =>
        {
            Finding::For(format!("the GPU is {gpu}, the build supports {build}"))
        }
        _ => Finding::Silent,
    }
}

/// Checks whether several ranks report an error in this log, but rank 0 does not.
fn rank_0_silent(case: &Case<'_>) -> Finding {
    let ranks = case.context.split("[Rank ").skip(1);
    let ranks = ranks.filter_map(|text| text.split_once(']')?.0.parse::<u32>().ok());
    let ranks: BTreeSet<u32> = ranks.collect();
    match ranks.first() {
        Some(1..) if ranks.len() > 1 => {
            Finding::For(format!("{} ranks report it, but not rank 0", ranks.len()))
        }
        _ => Finding::Silent,
    }
}

/// Checks whether libcuda and the kernel module belong to different releases of the driver. An update without a
/// restart usually stays within a release; libcuda of a container does not.
fn driver_parts(case: &Case<'_>) -> Finding {
    let field = |name: &str| case.found.get(name).and_then(serde_json::Value::as_str);
    let (Some(module), Some(library)) = (field("module_version"), field("libcuda_version")) else {
        return Finding::Silent;
    };
    if module.split('.').next() == library.split('.').next() {
        Finding::Silent
    } else {
        Finding::For(format!("the kernel module is {module}, libcuda is {library}"))
    }
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
        let is_one = |context: &str| in_log(batch_is_one, context).is_for();
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
