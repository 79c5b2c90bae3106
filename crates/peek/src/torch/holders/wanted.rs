//! Tracks the tensors without a name, and decides when the search for names ends.

use super::tensors::Tensor;
use crate::cpython::reader::AddressMap;

/// Percentage of the live tensors' bytes that must have a name before the search may end early.
const SUFFICIENT_PERCENT: u64 = 99;

#[derive(Debug)]
struct WantedTensor {
    tensor: Tensor,
    /// Bytes kept alive by the tensor's autograd graph.
    graph_bytes: u64,
}

/// Bytes of a tensor storage, and the number of wanted tensors that share the storage.
#[derive(Debug, Default)]
struct WantedStorage {
    bytes: u64,
    tensors: usize,
}

#[derive(Debug, Default)]
pub struct WantedTensors {
    tensors: AddressMap<WantedTensor>,
    storages: AddressMap<WantedStorage>,
    /// Bytes held by all live tensors and their graphs, whether named or not.
    living_bytes: u64,
    unnamed_bytes: u64,
}

impl WantedTensors {
    /// Adds a tensor. The bytes of a storage are added only once for all its views.
    pub fn insert(&mut self, tensor: &Tensor, bytes: u64, graph_bytes: u64) {
        let storage = self.storages.entry(tensor.data).or_default();
        storage.tensors += 1;
        let added = graph_bytes + if storage.tensors == 1 { bytes } else { 0 };
        storage.bytes = bytes;
        self.living_bytes += added;
        self.unnamed_bytes += added;
        let wanted = WantedTensor { tensor: tensor.clone(), graph_bytes };
        self.tensors.insert(tensor.object, wanted);
    }

    /// Removes a named tensor and the bytes of its storage.
    pub fn set_named(&mut self, object: u64) {
        if let Some(named) = self.tensors.remove(&object) {
            let storage = self.storages.remove(&named.tensor.data);
            let bytes = storage.map_or(0, |storage| storage.bytes);
            self.unnamed_bytes = self.unnamed_bytes.saturating_sub(bytes + named.graph_bytes);
        }
    }

    /// Removes tensors that no longer exist, such as temporaries of a training step.
    pub fn remove_freed(&mut self, is_alive: impl Fn(&Tensor) -> bool) {
        let storages = &mut self.storages;
        let mut freed = 0;
        self.tensors.retain(|_, wanted| {
            let is_alive = is_alive(&wanted.tensor);
            if !is_alive {
                freed += wanted.graph_bytes;
                if let Some(storage) = storages.get_mut(&wanted.tensor.data) {
                    storage.tensors -= 1;
                    if storage.tensors == 0 {
                        freed += std::mem::take(&mut storage.bytes);
                    }
                }
            }
            is_alive
        });
        self.living_bytes = self.living_bytes.saturating_sub(freed);
        self.unnamed_bytes = self.unnamed_bytes.saturating_sub(freed);
    }

    pub fn len(&self) -> usize {
        self.tensors.len()
    }

    pub fn is_empty(&self) -> bool {
        self.tensors.is_empty()
    }

    pub fn has_enough_names(&self) -> bool {
        let maximum = self.living_bytes / 100 * (100 - SUFFICIENT_PERCENT);
        self.unnamed_bytes <= maximum
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tensor(object: u64, data: u64) -> Tensor {
        Tensor { object, data, ..Tensor::default() }
    }

    #[test]
    fn search_has_enough_names_at_99_percent_of_the_living_bytes() {
        let mut wanted = WantedTensors::default();
        wanted.insert(&tensor(1, 0x1000), 6_000, 0);
        wanted.insert(&tensor(2, 0x1000), 6_000, 0);
        wanted.insert(&tensor(3, 0x2000), 100, 3_800);
        wanted.insert(&tensor(4, 0x3000), 100, 0);
        assert_eq!(wanted.living_bytes, 10_000);
        wanted.set_named(2);
        assert!(!wanted.has_enough_names(), "the graph's bytes have no name");
        wanted.set_named(3);
        assert!(wanted.has_enough_names());
        assert_eq!(wanted.len(), 2, "the other view and the small tensor remain");
        assert_eq!(wanted.unnamed_bytes, 100);
    }

    #[test]
    fn freed_tensors_are_no_longer_wanted() {
        let mut wanted = WantedTensors::default();
        wanted.insert(&tensor(1, 0x1000), 100, 0);
        wanted.insert(&tensor(2, 0x2000), 900, 7_000);
        wanted.insert(&tensor(3, 0x2000), 900, 0);
        wanted.remove_freed(|tensor| tensor.object != 2);
        assert_eq!((wanted.living_bytes, wanted.unnamed_bytes), (1_000, 1_000));
        wanted.remove_freed(|tensor| tensor.object == 1);
        assert_eq!((wanted.living_bytes, wanted.unnamed_bytes), (100, 100));
        wanted.set_named(1);
        assert!(wanted.is_empty() && wanted.has_enough_names());
    }
}
