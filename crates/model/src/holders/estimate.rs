//! Estimates from one reading of the memory holders: the minimum memory for training, and the activation memory per
//! sample.

use std::collections::BTreeMap;

use super::growth::container;
use super::{HolderClass, Holders};
use crate::units::Bytes;

/// Minimum percentage of the activation bytes that must be in tensors whose first dimension is the batch size.
const MIN_AGREEMENT_PERCENT: u64 = 80;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Activations {
    pub bytes: Bytes,
    /// Batch size, inferred from the first dimension of the tensors saved by autograd.
    pub batch_size: u64,
}

impl Activations {
    /// Returns the activations in a reading of the memory holders, or `None` if their shapes do not agree on a batch
    /// size. Autograd graphs stored in a Python container are ignored, because a training step does not need them.
    pub fn of(holders: &Holders) -> Option<Self> {
        let groups = holders.groups.iter().filter(|group| {
            group.class == HolderClass::SavedForBackward && container(&group.name).is_none()
        });
        let (mut bytes, mut listed) = (0_u64, 0_u64);
        let mut by_size: BTreeMap<u64, u64> = BTreeMap::new();
        for group in groups {
            bytes = bytes.saturating_add(group.bytes.0);
            for tensor in &group.tensors {
                listed = listed.saturating_add(tensor.bytes.0);
                if let [first, _, ..] = tensor.shape[..] {
                    let sum = by_size.entry(first).or_default();
                    *sum = sum.saturating_add(tensor.bytes.0);
                }
            }
        }
        let (&batch_size, &agreed) = by_size.iter().max_by_key(|(_, bytes)| **bytes)?;
        let is_agreed =
            u128::from(agreed) * 100 >= u128::from(listed) * u128::from(MIN_AGREEMENT_PERCENT);
        (is_agreed && batch_size > 1).then_some(Self { bytes: Bytes(bytes), batch_size })
    }

    pub fn per_sample(&self) -> Bytes {
        Bytes(self.bytes.0 / self.batch_size.max(1))
    }

    /// Returns the largest batch size that fits into the free memory if activations grow in proportion to the batch
    /// size.
    pub fn fitting_batch_size(&self, free: Bytes) -> Option<u64> {
        let more = free.0.checked_div(self.per_sample().0)?;
        Some(self.batch_size.saturating_add(more))
    }
}

/// Returns the bytes of parameters, gradients and optimizer state: the minimum for training.
pub fn training_minimum(holders: &Holders) -> Bytes {
    let is_needed = |class| {
        matches!(
            class,
            HolderClass::Parameter | HolderClass::Gradient | HolderClass::OptimizerState
        )
    };
    let needed = holders.classes().into_iter().filter(|(class, _)| is_needed(*class));
    Bytes(needed.map(|(_, bytes)| bytes.0).sum())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::holders::{HeldTensor, HolderGroup};

    fn saved(name: &str, tensors: &[(u64, &[u64])]) -> HolderGroup {
        let tensor = |&(bytes, shape): &(u64, &[u64])| HeldTensor {
            bytes: Bytes(bytes),
            shape: shape.to_vec(),
            ..HeldTensor::default()
        };
        HolderGroup {
            class: HolderClass::SavedForBackward,
            name: name.into(),
            bytes: Bytes(tensors.iter().map(|(bytes, _)| bytes).sum()),
            tensors: tensors.iter().map(tensor).collect(),
            ..HolderGroup::default()
        }
    }

    fn activations(groups: Vec<HolderGroup>) -> Option<Activations> {
        Activations::of(&Holders { groups, ..Holders::default() })
    }

    #[test]
    fn batch_size_is_the_first_dimension_of_most_activations() {
        let step = saved("loss", &[(600, &[8, 128]), (300, &[8, 16, 4]), (100, &[128])]);
        let leak = saved("losses[*]", &[(9_000, &[3, 9])]);
        let found = activations(vec![step, leak]).expect("activations");
        assert_eq!((found.bytes, found.batch_size), (Bytes(1_000), 8));
        assert_eq!(found.per_sample(), Bytes(125));
        assert_eq!(found.fitting_batch_size(Bytes(374)), Some(10));
    }

    #[test]
    fn shapes_that_disagree_give_no_batch_size() {
        let mixed = saved("loss", &[(500, &[8, 128]), (500, &[16, 128])]);
        assert_eq!(activations(vec![mixed]), None);
        assert_eq!(activations(vec![saved("loss", &[(500, &[512])])]), None);
        assert_eq!(activations(vec![saved("loss", &[(500, &[1, 512])])]), None);
        assert_eq!(activations(vec![saved("losses[*]", &[(500, &[8, 512])])]), None);
        assert_eq!(activations(Vec::new()), None);
    }

    #[test]
    fn training_needs_parameters_gradients_and_optimizer_state() {
        let group =
            |class, bytes| HolderGroup { class, bytes: Bytes(bytes), ..HolderGroup::default() };
        let holders = Holders {
            groups: vec![
                group(HolderClass::Parameter, 1),
                group(HolderClass::Gradient, 2),
                group(HolderClass::OptimizerState, 4),
                group(HolderClass::Variable, 8),
            ],
            ..Holders::default()
        };
        assert_eq!(training_minimum(&holders), Bytes(7));
    }
}
