//! Summary of one reading of the memory holders, small enough to be stored with an incident.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::growth::container;
use super::{HolderClass, Holders, Quality};
use crate::process::ProcessKey;
use crate::units::{Bytes, Mono};

const MAX_GROUPS: usize = 16;
/// Maximum length of a group's name in bytes. Longer names are truncated.
const MAX_NAME: usize = 200;

/// Memory on one device of one process, by class of holder.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct HolderSummary {
    pub process: ProcessKey,
    /// Device index as seen by the process.
    pub ordinal: u32,
    pub at: Mono,
    pub quality: Quality,
    /// Allocated bytes on the device: the sum of all classes.
    pub allocated: Bytes,
    pub classes: BTreeMap<HolderClass, Bytes>,
    /// Bytes of autograd graphs kept alive by a Python container, such as a list of losses. Included in `classes`.
    pub retained_graphs: Bytes,
    /// Bytes of tensors in a Python container, such as a list of outputs. Included in `classes`.
    pub retained_tensors: Bytes,
    /// The largest groups, largest first. Tensor names are private, so they are stored only at the user's request.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub groups: Vec<GroupSummary>,
}

#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct GroupSummary {
    pub class: HolderClass,
    pub name: String,
    pub count: u64,
    pub bytes: Bytes,
}

impl HolderSummary {
    pub fn of(holders: &Holders, ordinal: u32) -> Self {
        let mut summary = Self {
            process: holders.process,
            ordinal,
            at: holders.at,
            quality: holders.quality,
            ..Self::default()
        };
        for group in holders.groups.iter().filter(|group| group.ordinal == ordinal) {
            let add = |sum: &mut Bytes| sum.0 = sum.0.saturating_add(group.bytes.0);
            add(&mut summary.allocated);
            add(summary.classes.entry(group.class).or_default());
            match (group.class, container(&group.name)) {
                (HolderClass::SavedForBackward, Some(_)) => add(&mut summary.retained_graphs),
                (HolderClass::Variable, Some(_)) => add(&mut summary.retained_tensors),
                _ => {}
            }
            if summary.groups.len() < MAX_GROUPS && !group.name.is_empty() {
                summary.groups.push(GroupSummary {
                    class: group.class,
                    name: group.name.clone(),
                    count: group.count,
                    bytes: group.bytes,
                });
            }
        }
        summary.cut();
        summary
    }

    pub fn class(&self, class: HolderClass) -> Bytes {
        self.classes.get(&class).copied().unwrap_or_default()
    }

    /// Returns the bytes of parameters, gradients and optimizer state: the minimum for training. `None` if the program
    /// has neither gradients nor optimizer state, because it may not train.
    pub fn training_minimum(&self) -> Option<Bytes> {
        let trained = [HolderClass::Gradient, HolderClass::OptimizerState].map(|c| self.class(c).0);
        let trained = trained.into_iter().fold(0, u64::saturating_add);
        let parameters = self.class(HolderClass::Parameter).0;
        (trained > 0).then(|| Bytes(parameters.saturating_add(trained)))
    }

    /// Returns the bytes of tensors saved for the current backward pass, excluding the graphs that a container keeps
    /// alive.
    pub fn activations(&self) -> Bytes {
        let saved = self.class(HolderClass::SavedForBackward);
        Bytes(saved.0.saturating_sub(self.retained_graphs.0))
    }

    /// Returns true if the reading explains the `before` bytes allocated earlier: at least half remain, and at least
    /// half of those have names. An exiting program frees memory, and its tensors lose their names.
    pub fn explains(&self, before: Bytes) -> bool {
        let unnamed = [HolderClass::Unnamed, HolderClass::UnnamedArray];
        let unnamed: u64 = unnamed.map(|class| self.class(class).0).iter().sum();
        self.allocated.0 > 0 && self.allocated.0 >= before.0 / 2 && unnamed <= self.allocated.0 / 2
    }

    pub fn percent(&self, bytes: Bytes) -> f64 {
        match self.allocated.0 {
            0 => 0.0,
            all => bytes.0 as f64 * 100.0 / all as f64,
        }
    }

    pub fn forget_names(&mut self) {
        self.groups.clear();
    }

    /// Removes everything beyond the limits, regardless of where the summary came from.
    pub fn cut(&mut self) {
        self.groups.truncate(MAX_GROUPS);
        for group in &mut self.groups {
            group.name.truncate(group.name.floor_char_boundary(MAX_NAME));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::holders::HolderGroup;

    #[test]
    fn sums_are_those_of_one_device_and_separate_retained_graphs_from_activations() {
        let group = |ordinal, class, name: &str, bytes| HolderGroup {
            ordinal,
            class,
            name: name.into(),
            bytes: Bytes(bytes),
            ..HolderGroup::default()
        };
        let holders = Holders {
            groups: vec![
                group(0, HolderClass::SavedForBackward, "losses[*]", 400),
                group(1, HolderClass::Parameter, "other.weight", 300),
                group(0, HolderClass::SavedForBackward, "loss", 200),
                group(0, HolderClass::Parameter, "model.*.weight", 100),
                group(0, HolderClass::Workspace, "", 50),
                group(0, HolderClass::Variable, "outputs[*]", 25),
                group(0, HolderClass::Variable, "batch", 15),
            ],
            ..Holders::default()
        };
        let mut summary = HolderSummary::of(&holders, 0);
        assert_eq!((summary.allocated, summary.retained_graphs), (Bytes(790), Bytes(400)));
        assert_eq!(summary.retained_tensors, Bytes(25));
        assert_eq!((summary.activations(), summary.training_minimum()), (Bytes(200), None));
        let names: Vec<&str> = summary.groups.iter().map(|group| group.name.as_str()).collect();
        assert_eq!(names, ["losses[*]", "loss", "model.*.weight", "outputs[*]", "batch"]);
        summary.classes.insert(HolderClass::Gradient, Bytes(100));
        assert_eq!(summary.training_minimum(), Some(Bytes(200)));
        summary.forget_names();
        let text = serde_json::to_string(&summary).expect("plain data");
        assert!(!text.contains("losses"), "{text}");
        assert_eq!(serde_json::from_str::<HolderSummary>(&text).expect("its own JSON"), summary);
    }

    #[test]
    fn a_reading_of_an_exiting_program_explains_nothing() {
        let summary = |unnamed, named| HolderSummary {
            allocated: Bytes(unnamed + named),
            classes: [
                (HolderClass::Unnamed, Bytes(unnamed)),
                (HolderClass::Variable, Bytes(named)),
            ]
            .into(),
            ..HolderSummary::default()
        };
        assert!(summary(10, 90).explains(Bytes(200)));
        assert!(!summary(10, 90).explains(Bytes(202)), "most of the memory was freed");
        assert!(!summary(60, 40).explains(Bytes(100)), "most of the memory has no name");
        assert!(!HolderSummary::default().explains(Bytes(0)));
    }

    #[test]
    fn a_received_summary_is_cut_to_the_limits() {
        let group = GroupSummary { name: "ä".repeat(1_000), ..GroupSummary::default() };
        let mut summary = HolderSummary { groups: vec![group; 100], ..HolderSummary::default() };
        summary.cut();
        assert_eq!((summary.groups.len(), summary.groups[0].name.len()), (MAX_GROUPS, MAX_NAME));
    }
}
