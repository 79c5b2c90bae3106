//! Walks the graphs recorded by autograd for backward passes, and lists the tensors that they keep alive.
//!
//! The layouts of the several hundred node classes are unknown. This module therefore searches each node word by word
//! for pointers to tensors, to other nodes, and to arrays of either. glibc's malloc stores a node's size in front of
//! it.
//!
//! ```text
//! loss ─► grad_fn: SumBackward0 ─► AddmmBackward0 ─► saved: TensorImpl of the activation
//!                                        └─► ReluBackward0 ─► …
//! ```

use std::rc::Rc;

use super::tensors::{Classes, Tensor, is_impl_class};
use crate::cpython::objects::Python;
use crate::cpython::reader::AddressMap;
use crate::memory::is_pointer;

const MAX_NODES: usize = 1 << 18;
const MAX_SAVED: usize = 1 << 19;
/// Maximum size of an autograd node. A node without a plausible size is searched up to the default size.
const MAX_NODE_BYTES: u64 = 8 << 10;
const MIN_NODE_BYTES: u64 = 64;
const DEFAULT_NODE_BYTES: u64 = 512;
const MAX_ARRAY_BYTES: u64 = 256 << 10;
/// Flags in the lowest bits of the size stored by malloc.
const SIZE_FLAGS: u64 = 7;
/// Size of malloc's header, and the maximum rounding of an allocation, in bytes.
const CHUNK_HEADER: u64 = 8;
const CHUNK_ROUNDING: u64 = 32;

#[derive(Debug, Clone, PartialEq)]
pub struct SavedTensor {
    pub implementation: u64,
    /// Class of the autograd node, such as `AddmmBackward0`.
    pub node: Rc<str>,
    /// Index of the tensor whose autograd graph first reached the node.
    pub root: usize,
}

#[derive(Debug)]
pub struct Autograd<'a> {
    classes: &'a Classes<'a>,
    python: &'a Python<'a>,
    seen: AddressMap<()>,
    waiting: Vec<u64>,
    saved: Vec<SavedTensor>,
}

/// Kind of object that an autograd node refers to.
enum Referred {
    Tensor,
    Node,
    Other,
}

impl<'a> Autograd<'a> {
    /// Walks the graph from the `grad_fn` of each tensor in `roots`, in order. Returns the saved tensors, and whether
    /// the walk was complete.
    pub fn walk<'t>(
        classes: &'a Classes<'a>,
        python: &'a Python<'a>,
        roots: impl Iterator<Item = (usize, &'t Tensor)>,
    ) -> (Vec<SavedTensor>, bool) {
        let mut walk = Self {
            classes,
            python,
            seen: AddressMap::default(),
            waiting: Vec::new(),
            saved: Vec::new(),
        };
        for (root, tensor) in roots {
            walk.waiting.push(tensor.grad_fn);
            while let Some(node) = walk.waiting.pop() {
                let is_full = walk.seen.len() >= MAX_NODES || walk.saved.len() >= MAX_SAVED;
                if is_full || classes.reader.budget.is_over() {
                    return (walk.saved, false);
                }
                if walk.seen.insert(node, ()).is_none() {
                    walk.visit(node, root);
                }
            }
        }
        (walk.saved, true)
    }

    fn visit(&mut self, node: u64, root: usize) {
        let Some(class) = self.classes.of(node).filter(|class| is_node_class(class)) else {
            return;
        };
        // Skip an AccumulateGrad node, which refers to a parameter but does not keep it alive.
        if class.contains("AccumulateGrad") {
            return;
        }
        let size = self.allocation_size(node);
        let size = size.filter(|size| (MIN_NODE_BYTES..=MAX_NODE_BYTES).contains(size));
        let words = usize::try_from(size.unwrap_or(DEFAULT_NODE_BYTES) / 8).unwrap_or_default();
        let Some(words) = self.classes.reader.words(node, words) else { return };
        let name: Rc<str> = Rc::from(last_component(&class));
        self.follow(&words[1..], &name, root);
        // An autograd function written in Python stores its tensors in its Python object.
        if class.contains("PyNode") {
            for &object in &words[1..] {
                let Some(function) = self.python.type_of(object) else { continue };
                if function.is_autograd_function && function.basic_size <= MAX_NODE_BYTES {
                    let len = usize::try_from(function.basic_size / 8).unwrap_or_default();
                    let name: Rc<str> = Rc::from(function.name.as_str());
                    if let Some(words) = self.classes.reader.words(object, len) {
                        self.follow(words.get(2..).unwrap_or_default(), &name, root);
                    }
                }
            }
        }
    }

    /// Follows the pointers in an autograd node, and the arrays that they point to.
    fn follow(&mut self, words: &[u64], name: &Rc<str>, root: usize) {
        let mut index = 0;
        while let Some(&word) = words.get(index) {
            index += 1;
            if !is_pointer(word) || !matches!(self.refer(word, name, root), Referred::Other) {
                continue;
            }
            let Some(&[end, capacity]) = words.get(index..index + 2) else { continue };
            if let Some(len) = self.array_len(word, end, capacity) {
                for item in self.classes.reader.words(word, len).unwrap_or_default() {
                    self.refer(item, name, root);
                }
                index += 2;
            }
        }
    }

    fn refer(&mut self, address: u64, name: &Rc<str>, root: usize) -> Referred {
        let Some(class) = self.classes.of(address) else { return Referred::Other };
        if is_impl_class(&class) {
            if self.saved.len() < MAX_SAVED {
                self.saved.push(SavedTensor { implementation: address, node: name.clone(), root });
            }
            return Referred::Tensor;
        }
        if is_node_class(&class) {
            self.waiting.push(address);
            return Referred::Node;
        }
        Referred::Other
    }

    /// Returns the number of words in a `std::vector`: {begin, end, capacity}, with malloc's size in front of `begin`.
    /// Checks malloc's size, because three ascending words alone are often not a vector.
    fn array_len(&self, begin: u64, end: u64, capacity: u64) -> Option<usize> {
        let is_ordered = begin < end && end <= capacity && (end - begin).is_multiple_of(8);
        if !is_ordered || capacity - begin > MAX_ARRAY_BYTES || !begin.is_multiple_of(16) {
            return None;
        }
        let size = self.allocation_size(begin)?;
        let needed = capacity - begin;
        let is_allocation = (needed..=needed + CHUNK_ROUNDING).contains(&size);
        is_allocation.then(|| usize::try_from((end - begin) / 8).ok())?
    }

    /// Returns the size of a memory block allocated by glibc's malloc.
    fn allocation_size(&self, address: u64) -> Option<u64> {
        let header = self.classes.reader.word(address.checked_sub(CHUNK_HEADER)?)?;
        (header & !SIZE_FLAGS).checked_sub(CHUNK_HEADER)
    }
}

/// Returns true for classes derived from `torch::autograd::Node`. Names that start with `St` are control blocks of
/// shared pointers.
fn is_node_class(class: &str) -> bool {
    let is_node = class.contains("Backward")
        || class.ends_with("NodeE")
        || class.contains("AccumulateGrad")
        || class.contains("CopySlices");
    is_node && !class.starts_with("St")
}

/// Returns the last part of a mangled name: `AddmmBackward0` for `N5torch8autograd9generated14AddmmBackward0E`.
fn last_component(mangled: &str) -> &str {
    let mut rest = mangled.strip_prefix('N').unwrap_or(mangled);
    let mut last = mangled;
    while let Some(digits) = rest.find(|c: char| !c.is_ascii_digit()).filter(|&digits| digits > 0) {
        let len: usize = rest[..digits].parse().unwrap_or(usize::MAX);
        let Some((component, after)) = rest[digits..].split_at_checked(len) else { break };
        (last, rest) = (component, after);
    }
    last
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn last_component_of_mangled_names() {
        let name = "N5torch8autograd9generated14AddmmBackward0E";
        assert_eq!(last_component(name), "AddmmBackward0");
        assert_eq!(last_component("8MyFnNode"), "MyFnNode");
        assert_eq!(last_component("99x"), "99x");
    }
}
