//! Finds and decodes PyTorch tensors in the target's memory.
//!
//! ```text
//! Python object ─[16 or 24]─► TensorImpl ─► StorageImpl ─► data pointer, size
//!       ▲──────── pyobj ─────────┘  └─► AutogradMeta ─► grad_, grad_fn_
//! ```
//!
//! The offsets differ between PyTorch releases, and there is no table of them. Instead, each tensor in a sample votes
//! for the offsets that fit it. The evidence consists of the names of C++ classes and the pointer back to the Python
//! object. A candidate without that pointer is not a tensor.

use std::collections::BTreeMap;
use std::rc::Rc;

use gputop_model::reported_pool::Framework;

use super::arrays::Arrays;
use crate::cpython::interpreter::Interpreter;
use crate::cpython::objects::{Kind, Python};
use crate::cpython::reader::{Cache, Reader};
use crate::memory::elf::Image;
use crate::memory::is_pointer;
use crate::memory::maps::{Mapping, images};
use crate::scalar_types::Dtype;

/// Number of sampled tensors that vote on the field offsets.
const SAMPLES: usize = 256;
const IMPL_WORDS: usize = 26;
const STORAGE_WORDS: usize = 9;
const MAX_DIMENSIONS: u64 = 64;
const MAX_BASES: usize = 12;
/// Maximum number of cached class names.
const MAX_VTABLES: usize = 20_000;
const MAX_CLASS_NAME: usize = 300;
const MAX_LIBRARIES: usize = 64;
const TYPE_BASE: u64 = 256;
const TYPE_SUBCLASSES: u64 = 360;
const WEAKREF_OBJECT: u64 = 16;
const MODULE_DICT: u64 = 16;

const STORAGE_CLASS: &str = "N3c1011StorageImplE";
const STORAGE_VTABLE: &str = "_ZTVN3c1011StorageImplE";
const IMPL_VTABLE: &str = "_ZTVN3c1010TensorImplE";

/// Class names of C++ objects, cached by vtable.
#[derive(Debug)]
pub struct Classes<'a> {
    pub reader: &'a Reader<'a>,
    names: Cache<Rc<str>>,
}

impl<'a> Classes<'a> {
    pub fn new(reader: &'a Reader<'a>) -> Self {
        Self { reader, names: Cache::default() }
    }

    /// Returns the mangled class name of a C++ object.
    pub fn of(&self, object: u64) -> Option<Rc<str>> {
        if !is_pointer(object) {
            return None;
        }
        let vtable = self.reader.pointer(object)?;
        self.names.get(vtable, MAX_VTABLES, || self.read(vtable).map(Rc::from))
    }

    fn read(&self, vtable: u64) -> Option<String> {
        let info = self.reader.pointer(vtable.checked_sub(8)?)?;
        // Do not require alignment, because C++ class names are unaligned.
        let name = self.reader.word(info.checked_add(8)?)?;
        let name = self.reader.text(name, MAX_CLASS_NAME)?;
        let is_mangled =
            name.starts_with(['N', 'S']) || name.starts_with(|c: char| c.is_ascii_digit());
        (name.len() >= 4 && is_mangled).then_some(name)
    }

    pub fn is_impl(&self, object: u64) -> bool {
        let name = self.of(object);
        name.is_some_and(|name| is_impl_class(&name))
    }
}

/// Returns true for TensorImpl and the classes derived from it.
pub fn is_impl_class(name: &str) -> bool {
    name.starts_with('N') && name.ends_with("TensorImplE") && !name.contains("Undefined")
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct TensorLayout {
    /// Index of the TensorImpl pointer in the Python object.
    object_impl: usize,
    // Word indices in the TensorImpl. The AutogradMeta pointer follows the storage.
    storage: usize,
    object: usize,
    /// Index of the number of dimensions, followed by five inline sizes or a pointer to the sizes, and by five strides.
    dimensions: usize,
}

/// Field offsets that most of the sampled objects agree on.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Layout {
    pub tensor: TensorLayout,
    /// Word index of `grad_` within AutogradMeta; `grad_fn_` comes immediately after it. `None` if no tensor in the
    /// sample has either.
    gradient: Option<usize>,
}

#[derive(Debug, Clone, Default, PartialEq)]
pub struct Tensor {
    /// Address of the tensor's Python object, or 0 if there is none.
    pub object: u64,
    pub implementation: u64,
    /// Address of the storage's data, or 0 if there is none.
    pub data: u64,
    pub storage_bytes: u64,
    pub dtype: Dtype,
    pub shape: Vec<u64>,
    pub elements: u64,
    /// Address of the gradient's TensorImpl, or 0 if there is none.
    pub gradient: u64,
    /// Address of the autograd node that created the tensor, or 0 if there is none.
    pub grad_fn: u64,
    /// True if the Python type is derived from `torch.nn.Parameter`.
    pub is_parameter: bool,
}

impl Tensor {
    /// Returns a tensor that represents a storage; the tensor's type and shape are unknown.
    pub fn of_storage(storage: &Storage) -> Self {
        Self { data: storage.data, storage_bytes: storage.bytes, ..Self::default() }
    }

    /// Returns true if both values describe the same tensor with the same storage.
    pub fn is_same(&self, other: &Self) -> bool {
        let identity = |tensor: &Self| (tensor.object, tensor.data, tensor.storage_bytes);
        self.implementation == other.implementation && identity(self) == identity(other)
    }

    /// Returns true if the tensor covers only a part of its storage.
    pub fn is_view(&self) -> bool {
        self.elements.saturating_mul(self.dtype.bytes.max(1)) < self.storage_bytes
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Storage {
    pub data: u64,
    pub bytes: u64,
}

/// A block that the allocator of a framework has allocated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HeldBlock {
    pub address: u64,
    pub bytes: u64,
    /// Bytes requested by the program, if the allocator stores this size.
    pub requested: Option<u64>,
    pub ordinal: u32,
    pub is_private: bool,
    /// Framework of the array that has the block. The block of an array of JAX has the address of its PjRtBuffer.
    pub array_of: Option<Framework>,
}

impl HeldBlock {
    /// Returns the block of an array.
    pub fn of_array(address: u64, bytes: u64, ordinal: u32, framework: Framework) -> Self {
        let array_of = Some(framework);
        Self { address, bytes, requested: None, ordinal, is_private: false, array_of }
    }
}

/// Returns the class `name` of a module, its bases except `object`, and all classes derived from them. For
/// `torch.Tensor`, these are the types of Python tensors.
pub fn class_family(
    python: &Python<'_>,
    interpreter: &Interpreter,
    (module, name): (&str, &str),
) -> Vec<u64> {
    let find = || {
        let modules = interpreter.head.checked_add(python.layout.modules)?;
        let modules = python.reader.pointer(modules)?;
        let module = python.value_of(modules, module)?;
        let dict = python.reader.pointer(module.checked_add(MODULE_DICT)?)?;
        python.value_of(dict, name)
    };
    let Some(mut base) = find() else { return Vec::new() };
    for _ in 0..MAX_BASES {
        let next = python.reader.pointer(base.wrapping_add(TYPE_BASE));
        match next.filter(|&next| python.type_at(next).is_some_and(|found| found.name != "object"))
        {
            Some(next) => base = next,
            None => break,
        }
    }
    let budget = python.reader.budget;
    let max = budget.options.maximums.classes;
    let mut types = vec![base];
    let mut done = 0;
    while let Some(&class) = types.get(done).filter(|_| types.len() <= max) {
        done += 1;
        let subclasses = python.reader.pointer(class.wrapping_add(TYPE_SUBCLASSES));
        let Some(subclasses) = subclasses.filter(|&dict| python.kind_of(dict) == Some(Kind::Dict))
        else {
            continue;
        };
        python.dict_entries(subclasses, &mut |_, weak| {
            let class = python.reader.pointer(weak.wrapping_add(WEAKREF_OBJECT));
            if let Some(class) = class
                && python.type_at(class).is_some()
                && !types.contains(&class)
            {
                types.push(class);
            }
            types.len() <= max
        });
    }
    if types.len() > max {
        types.truncate(max);
        let sentence = format!("The maximum number of tensor classes ({max}) was reached.");
        budget.limits.add_end(sentence);
    }
    types
}

/// Vtables of C++ classes, one for each library that contains the class.
#[derive(Debug, Clone, Default)]
pub struct Vtables {
    pub storages: Vec<u64>,
    pub implementations: Vec<u64>,
}

/// Returns the vtables exported by PyTorch's libraries.
pub fn vtables(reader: &Reader<'_>, maps: &[Mapping]) -> Vtables {
    let is_torch = |map: &Mapping| {
        let name = map.file_name();
        name.starts_with("libc10") || name.starts_with("libtorch")
    };
    let mut found = Vtables::default();
    for base in images(maps, is_torch).into_iter().take(MAX_LIBRARIES) {
        let Ok(image) = Image::read(reader.memory(), base) else { continue };
        // Add two words, because objects point past the first two words of a vtable.
        let symbol = |name| image.symbol(reader.memory(), name).ok().flatten();
        found.storages.extend(symbol(STORAGE_VTABLE).map(|at| at + 16));
        found.implementations.extend(symbol(IMPL_VTABLE).map(|at| at + 16));
    }
    found
}

/// Determines the tensor offsets by vote. Returns `None` if there is no two-thirds majority.
pub fn calibrate(classes: &Classes<'_>, candidates: &[u64]) -> Option<Layout> {
    let mut votes: BTreeMap<TensorLayout, usize> = BTreeMap::new();
    let mut gradients: BTreeMap<usize, usize> = BTreeMap::new();
    let step = (candidates.len() / SAMPLES).max(1);
    // Extend the sample until enough tensors have voted, because most candidates may be stale.
    for first in 0..step {
        for &object in candidates.iter().skip(first).step_by(step) {
            let Some((layout, meta)) = layout_of(classes, object) else { continue };
            *votes.entry(layout).or_default() += 1;
            if let Some(index) = meta.and_then(|meta| gradient_of(classes, meta)) {
                *gradients.entry(index).or_default() += 1;
            }
        }
        let has_enough = votes.values().sum::<usize>() >= SAMPLES.min(candidates.len() / 32);
        if has_enough && !gradients.is_empty() {
            break;
        }
    }
    let tensor = majority(&votes)?;
    Some(Layout { tensor, gradient: majority(&gradients) })
}

fn majority<T: Copy + Ord>(votes: &BTreeMap<T, usize>) -> Option<T> {
    let all: usize = votes.values().sum();
    let (winner, count) = votes.iter().max_by_key(|(_, count)| **count)?;
    (count * 3 >= all * 2).then_some(*winner)
}

/// Returns the offsets suggested by one tensor, and the address of its AutogradMeta, if it has one.
fn layout_of(classes: &Classes<'_>, object: u64) -> Option<(TensorLayout, Option<u64>)> {
    let head = classes.reader.words(object, 5)?;
    for object_impl in [2, 3] {
        if !classes.is_impl(head[object_impl]) {
            continue;
        }
        let words = classes.reader.words(head[object_impl], IMPL_WORDS)?;
        // The lowest bit of the pointer from a TensorImpl to its Python object is a tag.
        let back = (1..10).find(|&index| words[index] & !1 == object)?;
        let storage =
            (1..10).find(|&index| classes.of(words[index]).as_deref() == Some(STORAGE_CLASS))?;
        let dimensions = (back + 1..back + 4).find(|&index| {
            let count = words[index];
            let sizes =
                words.get(index + 1..index + 1 + usize::try_from(count).unwrap_or(usize::MAX));
            let product =
                sizes.map(|sizes| sizes.iter().fold(1u64, |all, size| all.wrapping_mul(*size)));
            count <= 5 && product == Some(words[index + 12]) && words[index + 11] < 1 << 50
        })?;
        let meta = words[storage + 1];
        let meta = classes.of(meta).filter(|name| name.contains("AutogradMeta")).map(|_| meta);
        let layout = TensorLayout { object_impl, storage, object: back, dimensions };
        return Some((layout, meta));
    }
    None
}

/// Returns the index of `grad_` in an AutogradMeta that has a gradient or a `grad_fn`.
fn gradient_of(classes: &Classes<'_>, meta: u64) -> Option<usize> {
    let words = classes.reader.words(meta, 9)?;
    (1..9).find_map(|index| {
        let class = classes.of(words[index])?;
        if class.ends_with("TensorImplE") && class.starts_with('N') {
            // If there is no gradient, the pointer refers to PyTorch's undefined tensor.
            return Some(index);
        }
        let is_node = class.contains("Backward") && !class.starts_with("St");
        (is_node && index > 1).then_some(index - 1)
    })
}

/// Decoder for a process's tensors and arrays.
#[derive(Debug)]
pub struct Tensors<'a> {
    pub arrays: Arrays<'a>,
    pub classes: &'a Classes<'a>,
    /// Offsets of PyTorch's tensors, or `None` if they are not known.
    pub layout: Option<Layout>,
}

impl Tensors<'_> {
    /// Decodes a candidate for a Python tensor or an array. Returns `None` for a tensor whose TensorImpl does not point
    /// back to it.
    pub fn of_object(&self, object: u64) -> Option<Tensor> {
        if let Some(array) = self.arrays.read(object) {
            return array.ok().map(|array| array.tensor);
        }
        let at = object.checked_add(8 * self.layout?.tensor.object_impl as u64)?;
        let implementation = self.classes.reader.pointer(at)?;
        let tensor = self.of_impl(implementation)?;
        (tensor.object == object).then_some(tensor)
    }

    pub fn of_impl(&self, implementation: u64) -> Option<Tensor> {
        if !self.classes.is_impl(implementation) {
            return None;
        }
        let Layout { tensor: layout, gradient } = self.layout?;
        let words = self.classes.reader.words(implementation, IMPL_WORDS)?;
        let dimensions = *words.get(layout.dimensions)?;
        if dimensions > MAX_DIMENSIONS {
            return None;
        }
        let count = usize::try_from(dimensions).ok()?;
        let sizes = layout.dimensions + 1;
        let shape = match count {
            0..=5 => words.get(sizes..sizes + count)?.to_vec(),
            _ => self.classes.reader.words(*words.get(sizes)?, count)?,
        };
        let elements = *words.get(layout.dimensions + 12)?;
        let product = shape.iter().fold(1u64, |all, &size| all.saturating_mul(size));
        if product != elements {
            return None;
        }
        let mut tensor = Tensor {
            object: words.get(layout.object)? & !7,
            implementation,
            dtype: Dtype::at(usize::from(
                *words.get(layout.dimensions + 13)?.to_le_bytes().first()?,
            )),
            shape,
            elements,
            ..Tensor::default()
        };
        if let Some(storage) = self.storage(*words.get(layout.storage)?) {
            tensor.data = storage.data;
            tensor.storage_bytes = storage.bytes;
        }
        let meta = *words.get(layout.storage + 1)?;
        if let Some(gradient) = gradient
            && self.classes.of(meta).is_some_and(|name| name.contains("AutogradMeta"))
        {
            let words = self.classes.reader.words(meta, gradient + 2)?;
            tensor.gradient =
                Some(words[gradient]).filter(|&at| self.classes.is_impl(at)).unwrap_or(0);
            tensor.grad_fn = words[gradient + 1];
        }
        Some(tensor)
    }

    /// Decodes a StorageImpl. `refcount_` and `weakcount_` take one or two words, as in a TensorImpl.
    pub fn storage(&self, storage: u64) -> Option<Storage> {
        read_storage(self.classes, storage, self.layout?.tensor.storage)
    }
}

fn read_storage(classes: &Classes<'_>, storage: u64, data: usize) -> Option<Storage> {
    if classes.of(storage).as_deref() != Some(STORAGE_CLASS) {
        return None;
    }
    let words = classes.reader.words(storage, STORAGE_WORDS)?;
    // The lower half of the word after the vtable is a reference count in every release, and 0 in freed memory.
    let is_live = words[1] & 0xffff_ffff != 0;
    let storage = Storage { data: *words.get(data)?, bytes: *words.get(data + 4)? };
    (is_live && storage.data != 0).then_some(storage)
}

/// Decodes tensor storages without known offsets. Of the two known layouts, uses the one that yields more addresses for
/// which `is_block` returns true.
pub fn storages_by_vote(
    classes: &Classes<'_>,
    candidates: &[u64],
    is_block: impl Fn(u64) -> bool,
) -> Vec<Storage> {
    let read = |data| -> Vec<Storage> {
        let storages = candidates.iter().filter_map(|&at| read_storage(classes, at, data));
        storages.filter(|storage| is_block(storage.data)).collect()
    };
    let (newer, older) = (read(2), read(3));
    if newer.len() >= older.len() { newer } else { older }
}
