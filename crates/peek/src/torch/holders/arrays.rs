//! Decodes the arrays of JAX and CuPy.
//!
//! ```text
//! ArrayImpl ─► aval: ShapedArray ─► shape
//!     ├─► dtype, followed by the shape again
//!     ├─► sharding: SingleDeviceSharding or NamedSharding ─► Device ─► PjRtDevice ─► "CudaDevice(id=0)"
//!     └─► PjRtArray ─► PjRtBuffer, one for each GPU; null once the array was deleted
//!
//! cupy.ndarray ─► data: MemoryPointer ─► mem: PooledMemory ─► device address, size
//! ```
//!
//! The offsets in jaxlib's objects differ between releases. Each word is therefore recognized by the class of the object
//! that it points to, and an array counts only if both copies of its shape are equal.
//!
//! jaxlib does not store the device address of a buffer: only the plugin of the GPU does. The address of the PjRtBuffer
//! stands for it, so that arrays with the same buffer are counted once.

use gputop_model::reported_pool::Framework;

use super::tensors::{Classes, HeldBlock, Tensor};
use crate::cpython::objects::{Kind, Python, TypeInfo};
use crate::cpython::reader::Cache;
use crate::scalar_types::Dtype;

/// Maximum number of words read from an object. An ArrayImpl has its pointers in the first 15.
const MAX_WORDS: usize = 32;
const MAX_DIMENSIONS: u64 = 64;
const MAX_ELEMENTS: u64 = 1 << 48;
/// Maximum number of devices in a mesh.
const MAX_DEVICES: u64 = 1 << 14;
const MAX_MESH_AXES: u64 = 32;
const MAX_TEXT: usize = 64;
const MAX_ORDINAL: u32 = 127;
/// Maximum reference count of an array. Larger values occur in freed memory.
const MAX_REFERENCES: u64 = 1 << 28;
/// CuPy rounds the size of an allocation up to a multiple of this.
const CUPY_UNIT: u64 = 512;

const JAX_ARRAY: &str = "N3xla4ifrt9PjRtArrayE";
const DEVICE: &str = "N3xla4ifrt10PjRtDeviceE";
/// Classes of memory that CuPy allocates on a GPU.
const CUPY_MEMORY: &[&str] =
    &["cupy.cuda.memory.PooledMemory", "cupy.cuda.memory.Memory", "cupy.cuda.memory.MemoryAsync"];

/// An array with the memory that it holds.
#[derive(Debug)]
pub struct Array {
    pub tensor: Tensor,
    /// One block for each GPU.
    pub blocks: Vec<HeldBlock>,
}

/// Reason why an array is not counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum NotCounted {
    /// The object was freed, or the array was deleted.
    Deleted,
    HostMemory,
    /// Another library allocated the memory.
    ForeignMemory,
    UnknownLayout,
    UnknownSharding,
    UnknownType,
    OtherProcesses,
}

impl NotCounted {
    /// Returns the reason as a noun phrase, or `None` if the array holds no GPU memory of its own.
    pub fn reason(self) -> Option<&'static str> {
        match self {
            Self::Deleted | Self::HostMemory | Self::ForeignMemory => None,
            Self::UnknownLayout => Some("unknown layout"),
            Self::UnknownSharding => {
                Some("sharding that is neither a NamedSharding nor of one device")
            }
            Self::UnknownType => Some("data type of less than a byte, or unknown"),
            Self::OtherProcesses => Some("parts on GPUs of other processes"),
        }
    }
}

#[derive(Debug)]
pub struct Arrays<'a> {
    python: &'a Python<'a>,
    classes: &'a Classes<'a>,
    /// Number of the GPU by the address of its Python object.
    ordinals: Cache<Result<u32, NotCounted>>,
}

impl<'a> Arrays<'a> {
    pub fn new(python: &'a Python<'a>, classes: &'a Classes<'a>) -> Self {
        Self { python, classes, ordinals: Cache::default() }
    }

    /// Decodes an array, or returns `None` if the object is not one.
    pub fn read(&self, object: u64) -> Option<Result<Array, NotCounted>> {
        let class = self.python.type_of(object)?;
        match class.kind {
            Kind::JaxArray => Some(self.jax(object, &class)),
            Kind::CupyArray => Some(self.cupy(object, &class)),
            _ => None,
        }
    }

    fn jax(&self, object: u64, class: &TypeInfo) -> Result<Array, NotCounted> {
        let words = self.object(object, class).ok_or(NotCounted::Deleted)?;
        let aval = self.find(&words, |name| name == "ShapedArray").ok_or(NotCounted::Deleted)?;
        let dtype = self.find(&words, is_dtype).ok_or(NotCounted::UnknownLayout)?;
        let sharding = self.find(&words, |name| name.ends_with("Sharding"));
        let sharding = sharding.ok_or(NotCounted::UnknownLayout)?;
        let shape = words.get(dtype + 1..dtype + 4).and_then(|vector| self.vector(vector));
        let shape = shape.ok_or(NotCounted::UnknownLayout)?;
        if self.aval_shape(words[aval]).as_ref() != Some(&shape) {
            return Err(NotCounted::UnknownLayout);
        }
        let rest = words.iter().skip(sharding + 1);
        let mut arrays = rest.filter(|word| self.is_class(**word, |name| name == JAX_ARRAY));
        let array = *arrays.next().ok_or(NotCounted::Deleted)?;
        let buffers = self.buffers(array).ok_or(NotCounted::UnknownLayout)?;
        let elements = element_count(&shape).ok_or(NotCounted::UnknownLayout)?;
        let sharding = self.sharding(words[sharding])?;
        let dtype = self.dtype(words[dtype]).ok_or(NotCounted::UnknownType)?;
        let shard = sharding.shard(&shape).ok_or(NotCounted::UnknownLayout)?;
        let shard = element_count(&shard).ok_or(NotCounted::UnknownLayout)?;
        let bytes = shard.saturating_mul(dtype.bytes);
        if sharding.ordinals.len() != buffers.len() {
            return Err(NotCounted::OtherProcesses);
        }
        let blocks = buffers.iter().zip(&sharding.ordinals);
        Ok(Array {
            tensor: Tensor {
                object,
                implementation: array,
                data: buffers.first().copied().unwrap_or(0),
                storage_bytes: bytes,
                dtype,
                shape,
                elements,
                ..Tensor::default()
            },
            blocks: blocks
                .map(|(&at, &gpu)| HeldBlock::of_array(at, bytes, gpu, Framework::Jax))
                .collect(),
        })
    }

    fn cupy(&self, object: u64, class: &TypeInfo) -> Result<Array, NotCounted> {
        let words = self.object(object, class).ok_or(NotCounted::Deleted)?;
        let dtype = self.find(&words, is_dtype).ok_or(NotCounted::Deleted)?;
        let data = self.find(&words, |name| name == "cupy.cuda.memory.MemoryPointer");
        let data = data.ok_or(NotCounted::Deleted)?;
        // The number of elements is followed by the shape.
        let size = words.get(4).copied().ok_or(NotCounted::UnknownLayout)?;
        let shape = words.get(5..8).and_then(|vector| self.vector(vector));
        let shape = shape.filter(|shape| element_count(shape) == Some(size));
        let shape = shape.ok_or(NotCounted::UnknownLayout)?;
        let dtype = self.dtype(words[dtype]).ok_or(NotCounted::UnknownType)?;
        let reader = self.python.reader;
        let pointer = reader.words(words[data], 6).ok_or(NotCounted::Deleted)?;
        let (address, memory) = (pointer[3], pointer[5]);
        let class = self.python.type_of(memory).ok_or(NotCounted::UnknownLayout)?;
        if !CUPY_MEMORY.contains(&class.name.as_str()) {
            return Err(NotCounted::ForeignMemory);
        }
        let memory_words = reader.words(memory, 5).ok_or(NotCounted::Deleted)?;
        let (start, bytes) = (memory_words[2], memory_words[3]);
        if bytes == 0 {
            return Err(NotCounted::Deleted);
        }
        let ordinal = u32::try_from(memory_words[4] & 0xffff_ffff).ok();
        let ordinal = ordinal.filter(|ordinal| *ordinal <= MAX_ORDINAL);
        let is_inside = address.checked_sub(start).is_some_and(|offset| offset < bytes);
        let ordinal = ordinal.filter(|_| is_inside).ok_or(NotCounted::UnknownLayout)?;
        let used = size.saturating_mul(dtype.bytes);
        let is_whole = address == start && used.div_ceil(CUPY_UNIT) == bytes.div_ceil(CUPY_UNIT);
        Ok(Array {
            tensor: Tensor {
                object,
                implementation: memory,
                data: start,
                storage_bytes: if is_whole { used } else { bytes },
                dtype,
                shape,
                elements: size,
                ..Tensor::default()
            },
            blocks: vec![HeldBlock::of_array(start, bytes, ordinal, Framework::Cupy)],
        })
    }

    /// Returns the words of a Python object, or `None` if it was freed.
    fn object(&self, object: u64, class: &TypeInfo) -> Option<Vec<u64>> {
        let count = usize::try_from(class.basic_size / 8).ok()?.clamp(2, MAX_WORDS);
        let words = self.python.reader.words(object, count)?;
        // The upper half contains flags since Python 3.14.
        let references = words.first()? & 0xffff_ffff;
        (1..MAX_REFERENCES).contains(&references).then_some(words)
    }

    /// Returns the index of the first word that points to an object whose type has such a name.
    fn find(&self, words: &[u64], is_wanted: impl Fn(&str) -> bool) -> Option<usize> {
        let class = |word: u64| self.python.type_of(word);
        (2..words.len()).find(|&at| class(words[at]).is_some_and(|class| is_wanted(&class.name)))
    }

    fn is_class(&self, object: u64, is_wanted: impl Fn(&str) -> bool) -> bool {
        self.classes.of(object).is_some_and(|name| is_wanted(&name))
    }

    /// Reads a `std::vector<int64_t>` with the sizes of an array.
    fn vector(&self, words: &[u64]) -> Option<Vec<u64>> {
        let &[start, end, capacity] = words else { return None };
        let bytes = end.checked_sub(start).filter(|_| end <= capacity)?;
        let is_valid = bytes.is_multiple_of(8) && bytes <= 8 * MAX_DIMENSIONS;
        let count = usize::try_from(bytes / 8).ok().filter(|_| is_valid)?;
        if count == 0 { Some(Vec::new()) } else { self.python.reader.words(start, count) }
    }

    /// Reads the slot `shape` of a ShapedArray.
    fn aval_shape(&self, aval: u64) -> Option<Vec<u64>> {
        let class = self.python.type_of(aval)?;
        let reader = self.python.reader;
        let is_shape = |name: u64| reader.text(name, MAX_TEXT).as_deref() == Some("shape");
        let &(offset, _) = class.members.iter().find(|(_, name)| is_shape(*name))?;
        let sizes = self.tuple(reader.pointer(aval.checked_add(offset)?)?, MAX_DIMENSIONS)?;
        let size = |item: u64| u64::try_from(self.python.int(item)?).ok();
        sizes.into_iter().map(size).collect()
    }

    fn tuple(&self, object: u64, max: u64) -> Option<Vec<u64>> {
        let is_tuple = self.python.kind_of(object) == Some(Kind::Tuple);
        self.python.len(object).filter(|len| is_tuple && *len <= max)?;
        let mut items = Vec::new();
        self.python.items(object, Kind::Tuple, &mut |item, _| items.push(item))?;
        Some(items)
    }

    /// Returns the data type of a numpy dtype from the name of its class: `numpy.dtypes.Float32DType` or
    /// `numpy.dtype[bfloat16]`.
    fn dtype(&self, object: u64) -> Option<Dtype> {
        let class = self.python.type_of(object)?;
        let name = class.name.strip_prefix("numpy.dtypes.").and_then(|n| n.strip_suffix("DType"));
        let name = name.or_else(|| class.name.strip_prefix("numpy.dtype[")?.strip_suffix(']'))?;
        Dtype::of_array(&name.to_ascii_lowercase())
    }

    /// Returns the buffers of a PjRtArray: an `absl::InlinedVector` of `shared_ptr`, with space for one inside.
    fn buffers(&self, array: u64) -> Option<Vec<u64>> {
        let reader = self.python.reader;
        let words = reader.words(array, MAX_WORDS)?;
        let is_buffer = |name: &str| {
            name.starts_with("N3xla")
                && (name.ends_with("BufferE") || name.ends_with("BufferImplE"))
        };
        (2..words.len() - 1).find_map(|at| {
            // The lowest bit is set if the elements are outside.
            let (count, first) = (words[at] >> 1, words[at + 1]);
            let pointers = match words[at] & 1 {
                0 if count == 1 => vec![first],
                1 if (1..=MAX_DEVICES).contains(&count) => {
                    let words = reader.words(first, 2 * usize::try_from(count).ok()?)?;
                    words.into_iter().step_by(2).collect()
                }
                _ => return None,
            };
            pointers.iter().all(|at| self.is_class(*at, is_buffer)).then_some(pointers)
        })
    }

    fn sharding(&self, object: u64) -> Result<Sharding, NotCounted> {
        let class = self.python.type_of(object).ok_or(NotCounted::UnknownLayout)?;
        let words = self.object(object, &class).ok_or(NotCounted::UnknownLayout)?;
        let kind = self.find(&words, |name| name == "str").map(|at| words[at]);
        let kind = kind.and_then(|kind| self.python.text(kind));
        if kind.is_some_and(|kind| &*kind != "device") {
            return Err(NotCounted::HostMemory);
        }
        let of = |wanted: &'static [&str]| {
            let at = self.find(&words, |name| wanted.contains(&last_part(name)));
            at.map(|at| words[at])
        };
        match last_part(&class.name) {
            "SingleDeviceSharding" => {
                let device = of(&["Device"]).ok_or(NotCounted::UnknownLayout)?;
                Ok(Sharding { factors: Vec::new(), ordinals: vec![self.ordinal(device)?] })
            }
            "NamedSharding" => {
                let mesh = of(&["Mesh"]).ok_or(NotCounted::UnknownLayout)?;
                let spec = of(&["PartitionSpec", "P"]).ok_or(NotCounted::UnknownLayout)?;
                let mesh = self.mesh(mesh).ok_or(NotCounted::UnknownLayout)?;
                let factors = self.factors(spec, &mesh).ok_or(NotCounted::UnknownLayout)?;
                let ordinals = mesh.devices.iter().map(|device| self.ordinal(*device));
                Ok(Sharding { factors, ordinals: ordinals.collect::<Result<_, _>>()? })
            }
            _ => Err(NotCounted::UnknownSharding),
        }
    }

    fn ordinal(&self, device: u64) -> Result<u32, NotCounted> {
        let read = || Some(self.read_ordinal(device));
        let max = usize::try_from(MAX_DEVICES).unwrap_or(usize::MAX);
        self.ordinals.get(device, max, read).unwrap_or(Err(NotCounted::UnknownLayout))
    }

    /// Returns the number of a GPU from the text of its `xla::ifrt::PjRtDevice`: `CudaDevice(id=3)`.
    fn read_ordinal(&self, device: u64) -> Result<u32, NotCounted> {
        let reader = self.python.reader;
        let words = reader.words(device, 8).ok_or(NotCounted::UnknownLayout)?;
        let device = words.into_iter().skip(2).find(|at| self.is_class(*at, |name| name == DEVICE));
        let words = device.and_then(|device| reader.words(device, MAX_WORDS));
        let words = words.ok_or(NotCounted::UnknownLayout)?;
        // A `std::string` begins with a pointer to its text, and its length.
        let texts = words.array_windows().filter_map(|&[at, len]| {
            let len = usize::try_from(len).ok().filter(|len| (1..=MAX_TEXT).contains(len))?;
            String::from_utf8(reader.bytes(at, len)?).ok()
        });
        let device = texts.filter_map(|text| parse_device(&text)).next();
        device.ok_or(NotCounted::UnknownLayout)?
    }

    fn mesh(&self, object: u64) -> Option<Mesh> {
        let (python, class) = (self.python, self.python.type_of(object)?);
        let (mut devices, mut names) = (0, 0);
        python.attributes(object, &class, &mut |name, value| {
            match python.text(name).as_deref() {
                Some("devices") => devices = value,
                Some("axis_names") => names = value,
                _ => {}
            }
            devices == 0 || names == 0
        });
        // An ndarray has the pointer to its elements, the number of dimensions, and a pointer to the sizes.
        let is_array = python.type_of(devices)?.name == "numpy.ndarray";
        let array = python.reader.words(devices, 5).filter(|_| is_array)?;
        let axes = (array[3] & 0xffff_ffff).min(MAX_MESH_AXES);
        let sizes = python.reader.words(array[4], usize::try_from(axes).ok()?)?;
        let count = element_count(&sizes).filter(|count| (1..=MAX_DEVICES).contains(count))?;
        let names = self.tuple(names, MAX_MESH_AXES).filter(|names| names.len() == sizes.len())?;
        let devices = python.reader.words(array[2], usize::try_from(count).ok()?)?;
        Some(Mesh { axes: names.into_iter().zip(sizes).collect(), devices })
    }

    /// Returns the number of parts into which a PartitionSpec divides each dimension.
    fn factors(&self, spec: u64, mesh: &Mesh) -> Option<Vec<u64>> {
        let class = self.python.type_of(spec)?;
        // Since JAX 0.6, a PartitionSpec contains a tuple instead of being one.
        let parts = match class.kind {
            Kind::Tuple => spec,
            _ => {
                let words = self.object(spec, &class)?;
                words[self.find(&words, |name| name == "tuple")?]
            }
        };
        let size = |name: u64| {
            let text = self.python.text(name)?;
            let mut axes = mesh.axes.iter();
            let is_same = |axis: u64| self.python.text(axis).is_some_and(|other| other == text);
            Some(axes.find(|(axis, _)| is_same(*axis))?.1)
        };
        let factor = |part: u64| {
            let class = self.python.type_of(part)?;
            match class.kind {
                Kind::Tuple => {
                    let mut sizes = self.tuple(part, MAX_MESH_AXES)?.into_iter().map(size);
                    sizes.try_fold(1_u64, |all, size| all.checked_mul(size?))
                }
                _ if class.name == "NoneType" => Some(1),
                _ => size(part),
            }
        };
        self.tuple(parts, MAX_DIMENSIONS)?.into_iter().map(factor).collect()
    }
}

struct Mesh {
    /// Address of the name, and size, of each axis.
    axes: Vec<(u64, u64)>,
    devices: Vec<u64>,
}

/// How an array is divided among GPUs.
struct Sharding {
    /// Number of parts of each of the first dimensions.
    factors: Vec<u64>,
    ordinals: Vec<u32>,
}

impl Sharding {
    /// Returns the shape of the part on each GPU.
    fn shard(&self, shape: &[u64]) -> Option<Vec<u64>> {
        let mut shard = shape.to_vec();
        for (index, &factor) in self.factors.iter().enumerate() {
            let size = shard.get_mut(index)?;
            *size = size.checked_div(factor).filter(|part| part * factor == *size)?;
        }
        Some(shard)
    }
}

fn is_dtype(name: &str) -> bool {
    name.starts_with("numpy.dtype")
}

fn last_part(name: &str) -> &str {
    name.rsplit_once('.').map_or(name, |(_, last)| last)
}

fn element_count(shape: &[u64]) -> Option<u64> {
    let product = shape.iter().try_fold(1_u64, |all, size| all.checked_mul(*size));
    product.filter(|elements| *elements <= MAX_ELEMENTS)
}

/// Parses `CudaDevice(id=3)` or `cuda(id=3)`. Returns `None` for any other text.
fn parse_device(text: &str) -> Option<Result<u32, NotCounted>> {
    let (kind, number) = text.strip_suffix(')')?.split_once("(id=")?;
    let number = number.parse().ok().filter(|number| *number <= MAX_ORDINAL)?;
    match kind {
        "CudaDevice" | "cuda" => Some(Ok(number)),
        "CpuDevice" => Some(Err(NotCounted::HostMemory)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_devices_of_cuda_are_gpus() {
        let table = [
            ("CudaDevice(id=3)", Some(Ok(3))),
            ("cuda(id=0)", Some(Ok(0))),
            ("CpuDevice(id=1)", Some(Err(NotCounted::HostMemory))),
            ("CudaDevice(id=128)", None),
            ("CudaDevice(id=-1)", None),
            ("CudaDevice(id=3", None),
            ("RocmDevice(id=3)", None),
            ("TFRT_CPU_0", None),
            ("", None),
        ];
        for (text, expected) in table {
            assert_eq!(parse_device(text), expected, "{text}");
        }
    }

    #[test]
    fn a_dimension_that_does_not_divide_evenly_has_no_size() {
        let shard = |factors: &[u64], shape: &[u64]| {
            Sharding { factors: factors.to_vec(), ordinals: Vec::new() }.shard(shape)
        };
        assert_eq!(shard(&[], &[6, 4]), Some(vec![6, 4]));
        assert_eq!(shard(&[3], &[6, 4]), Some(vec![2, 4]));
        assert_eq!(shard(&[1, 4], &[6, 4]), Some(vec![6, 1]));
        for (factors, shape) in
            [(&[4][..], &[6, 4][..]), (&[0], &[6]), (&[2, 2], &[6]), (&[9], &[0, 3])]
        {
            let expected = (shape[0] == 0).then(|| vec![0, 3]);
            assert_eq!(shard(factors, shape), expected, "{factors:?} {shape:?}");
        }
    }
}
