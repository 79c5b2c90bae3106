//! A reading as a recording stores it: the groups, and the bytes of each data type and shape in a group. Single tensors
//! are omitted, because they take most of the space.

use super::{HeldTensor, Holders, merge_smallest};

/// Maximum number of groups.
const MAX_GROUPS: usize = 256;
/// Maximum number of data types and shapes in a group.
const MAX_SHAPES: usize = 4;
/// Maximum number of dimensions in a shape.
const MAX_DIMENSIONS: usize = 8;
/// Maximum length of a name or sentence in bytes. Longer ones are truncated.
const MAX_TEXT: usize = 200;

impl Holders {
    /// Reduces the reading to what a recording stores. Applied to a reduced reading, it changes nothing.
    #[must_use]
    pub fn recorded(mut self) -> Self {
        self.groups = merge_smallest(self.groups, MAX_GROUPS);
        // There may be more than `MAX_GROUPS` pairs of a device and a class if the reading is not from this gputop.
        self.groups.truncate(MAX_GROUPS);
        for group in &mut self.groups {
            truncate(&mut group.name);
            group.tensors = shapes(&group.tensors);
        }
        self.limit.iter_mut().for_each(truncate);
        self
    }
}

fn truncate(text: &mut String) {
    text.truncate(text.floor_char_boundary(MAX_TEXT));
}

/// Returns a tensor without a name and address for each data type and shape, with the sum of their bytes.
fn shapes(tensors: &[HeldTensor]) -> Vec<HeldTensor> {
    let mut shapes: Vec<HeldTensor> = Vec::new();
    for tensor in tensors {
        let mut dtype = tensor.dtype.clone();
        truncate(&mut dtype);
        let shape: Vec<u64> = tensor.shape.iter().copied().take(MAX_DIMENSIONS).collect();
        let at = shapes.iter().position(|known| known.dtype == dtype && known.shape == shape);
        if let Some(known) = at.and_then(|at| shapes.get_mut(at)) {
            known.bytes.0 = known.bytes.0.saturating_add(tensor.bytes.0);
        } else if shapes.len() < MAX_SHAPES {
            let bytes = tensor.bytes;
            shapes.push(HeldTensor { bytes, dtype, shape, ..HeldTensor::default() });
        }
    }
    shapes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::holders::estimate::Activations;
    use crate::holders::{HolderClass, HolderGroup};
    use crate::units::Bytes;

    fn tensor(dtype: &str, shape: &[u64], bytes: u64) -> HeldTensor {
        HeldTensor {
            name: "secret[7]".into(),
            bytes: Bytes(bytes),
            address: 0x7000,
            dtype: dtype.into(),
            shape: shape.to_vec(),
            path: vec!["__main__".into(), ".secret".into()],
            ..HeldTensor::default()
        }
    }

    fn group(name: &str, tensors: Vec<HeldTensor>) -> HolderGroup {
        HolderGroup {
            class: HolderClass::SavedForBackward,
            name: name.into(),
            count: tensors.len() as u64,
            bytes: Bytes(tensors.iter().map(|tensor| tensor.bytes.0).sum()),
            tensors,
            ..HolderGroup::default()
        }
    }

    #[test]
    fn a_recorded_reading_has_groups_and_shapes_but_no_single_tensors() {
        let same = vec![tensor("float32", &[8, 4], 128), tensor("float32", &[8, 4], 128)];
        let mixed = vec![tensor("bfloat16", &[8, 2], 32), tensor("float32", &[8], 16)];
        let holders = Holders {
            groups: vec![group("loss", same), group("mixed", mixed)],
            ..Holders::default()
        };
        let recorded = holders.clone().recorded();
        let text = serde_json::to_string(&recorded).expect("plain data");
        assert!(!text.contains("secret") && !text.contains("28672"), "{text}");
        let groups = |holders: &Holders| -> Vec<_> {
            let common = |group: &HolderGroup| {
                let dtype = group.common(|tensor| tensor.dtype.clone());
                (group.key(), group.count, group.bytes, dtype, group.common(HeldTensor::shape_text))
            };
            holders.groups.iter().map(common).collect()
        };
        assert_eq!(groups(&recorded), groups(&holders));
        assert_eq!(Activations::of(&recorded), Activations::of(&holders));
        assert_eq!(recorded.groups[0].tensors.len(), 1);
        assert_eq!(recorded.clone().recorded(), recorded);
    }

    #[test]
    fn a_recorded_reading_is_limited_without_losing_bytes() {
        let shapes = (0..20).map(|size| tensor("float32", &[size; 40], 1)).collect();
        let mut groups: Vec<HolderGroup> =
            (0..2_000).map(|index| group(&format!("v{index}"), vec![tensor("", &[], 1)])).collect();
        groups.push(group(&"\u{e4}".repeat(1_000), shapes));
        let holders = Holders { groups, limit: Some("x".repeat(1_000)), ..Holders::default() };
        let recorded = holders.recorded();
        assert_eq!(recorded.groups.len(), MAX_GROUPS);
        assert_eq!(recorded.groups.iter().map(|group| group.bytes.0).sum::<u64>(), 2_020);
        let long = recorded.groups.iter().find(|group| group.name.len() == MAX_TEXT);
        let long = long.expect("the long name");
        assert_eq!((long.tensors.len(), long.tensors[0].shape.len()), (MAX_SHAPES, MAX_DIMENSIONS));
        assert_eq!(recorded.limit.map(|limit| limit.len()), Some(MAX_TEXT));
        let ordinals = (0..2_000).map(|ordinal| HolderGroup { ordinal, ..group("", Vec::new()) });
        let many = Holders { groups: ordinals.collect(), ..Holders::default() }.recorded();
        assert_eq!(many.groups.len(), MAX_GROUPS);
    }
}
