//! The tensors that a Python program reports about itself, compared with the holders that gputop reads from outside.
//!
//! The programs are those of benches/hardware/holders, which also document the report.

use std::collections::{BTreeMap, HashMap};

use gputop_model::holders::purpose::purpose;
use gputop_model::holders::{HeldTensor, HolderClass, Holders, Quality};
use serde::Deserialize;

#[derive(Deserialize)]
pub struct Truth {
    pub allocated: u64,
    /// Address and size of the storage, by class and name.
    pub names: BTreeMap<HolderClass, BTreeMap<String, (u64, u64)>>,
    /// Addresses of the storages that graphs keep.
    pub saved: Vec<u64>,
    /// Purpose of tensors by name, for tensors of libraries that gputop recognizes.
    #[serde(default)]
    pub purposes: BTreeMap<String, String>,
    /// Address and size of the storage, shape and type of each tensor with a Python object.
    #[serde(default)]
    pub tensors: Vec<(u64, u64, Vec<u64>, String)>,
}

impl Truth {
    /// Compares each tensor and all sums. `who` is printed in failures.
    pub fn check(&self, holders: &Holders, who: &str) {
        assert_eq!(holders.limit, None, "{who}");
        assert_eq!(holders.quality, Quality::Exact, "{who}");
        assert_eq!(holders.allocated.0, self.allocated, "{who}");
        let sum: u64 = holders.groups.iter().map(|group| group.bytes.0).sum();
        assert_eq!(sum, self.allocated, "{who}");
        let found = listed(holders);
        for (class, names) in &self.names {
            for (name, (address, _)) in names {
                let (found_class, tensor) = found[address];
                // Tied weights have several names, and the program reports one of them.
                let is_name = tensor.name == *name || tensor.aliases.contains(name);
                assert!(
                    found_class == *class && is_name,
                    "{who}: {name}: {found_class:?} {tensor:?}"
                );
                assert!(!tensor.shape.is_empty() || name.starts_with("losses"), "{who}: {name}");
            }
        }
        for (name, expected) in &self.purposes {
            assert_eq!(purpose(name), Some(expected.as_str()), "{who}: {name}");
        }
        // A graph also saves parameters and buffers, which keep their own names.
        let named: Vec<u64> =
            self.names.values().flat_map(BTreeMap::values).map(|(address, _)| *address).collect();
        for address in self.saved.iter().filter(|address| !named.contains(address)) {
            let held = found.get(address).map(|(class, _)| *class);
            assert_eq!(held, Some(HolderClass::SavedForBackward), "{who}: {address:#x}");
        }
        for (address, bytes, ..) in &self.tensors {
            let Some((class, tensor)) = found.get(address) else {
                panic!("{who}: the tensor at {address:#x} with {bytes} B is not listed");
            };
            let mut tensors = self.tensors.iter().filter(|(at, ..)| at == address);
            let is_known = tensors.any(|(_, _, shape, dtype)| {
                (shape, dtype) == (&tensor.shape, &tensor.dtype) || is_saved_view(*class)
            });
            assert!(is_known, "{who}: {class:?} {tensor:?}");
        }
    }

    /// Compares the named tensors with a reading of the program while it was busy with others. A reading that a limit
    /// ended may lack names, but has no wrong ones.
    #[allow(dead_code, reason = "only the test bed has busy programs")]
    pub fn check_lasting(&self, holders: &Holders, who: &str) {
        let sum: u64 = holders.groups.iter().map(|group| group.bytes.0).sum();
        assert_eq!(sum, holders.allocated.0, "{who}");
        let tensors = holders.groups.iter().flat_map(|group| {
            group.tensors.iter().map(|tensor| (tensor.address, (group.class, tensor)))
        });
        let found: HashMap<_, _> = tensors.collect();
        for (class, names) in &self.names {
            for (name, (address, _)) in names {
                let held = found.get(address);
                let is_right = held.is_some_and(|(found, tensor)| {
                    found == class && (tensor.name == *name || tensor.aliases.contains(name))
                });
                let has_other = held.is_some_and(|(found, _)| found == class);
                let may_be_unnamed = holders.is_incomplete && !has_other;
                assert!(is_right || may_be_unnamed, "{who}: {name}: {held:?} {:?}", holders.limit);
            }
        }
    }
}

/// A tensor saved by a graph may be another view of the storage, which has no Python object.
fn is_saved_view(class: HolderClass) -> bool {
    class == HolderClass::SavedForBackward
}

/// Returns the class and tensor of each listed block, by address.
pub fn listed(holders: &Holders) -> HashMap<u64, (HolderClass, &HeldTensor)> {
    let mut found = HashMap::new();
    for group in &holders.groups {
        assert_eq!(group.count as usize, group.tensors.len(), "all are listed");
        found.extend(group.tensors.iter().map(|tensor| (tensor.address, (group.class, tensor))));
    }
    found
}
