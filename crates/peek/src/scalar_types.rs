//! Data types of tensors and arrays.

const fn dtype(name: &'static str, bytes: u64) -> Dtype {
    Dtype { name, bytes }
}

/// Values of c10::ScalarType: name, and bytes per element. New PyTorch releases only append to this list.
pub const DTYPES: &[Dtype] = &[
    dtype("uint8", 1),
    dtype("int8", 1),
    dtype("int16", 2),
    dtype("int32", 4),
    dtype("int64", 8),
    dtype("float16", 2),
    dtype("float32", 4),
    dtype("float64", 8),
    dtype("complex32", 4),
    dtype("complex64", 8),
    dtype("complex128", 16),
    dtype("bool", 1),
    dtype("qint8", 1),
    dtype("quint8", 1),
    dtype("qint32", 4),
    dtype("bfloat16", 2),
    dtype("quint4x2", 1),
    dtype("quint2x4", 1),
    dtype("bits1x8", 1),
    dtype("bits2x4", 1),
    dtype("bits4x2", 1),
    dtype("bits8", 1),
    dtype("bits16", 2),
    dtype("float8_e5m2", 1),
    dtype("float8_e4m3fn", 1),
    dtype("float8_e5m2fnuz", 1),
    dtype("float8_e4m3fnuz", 1),
    dtype("uint16", 2),
    dtype("uint32", 4),
    dtype("uint64", 8),
];

/// Data types of JAX's and CuPy's arrays that PyTorch does not have, or that are not in [`DTYPES`].
const ARRAY_DTYPES: &[Dtype] = &[
    dtype("float8_e3m4", 1),
    dtype("float8_e4m3", 1),
    dtype("float8_e4m3b11fnuz", 1),
    dtype("float8_e8m0fnu", 1),
];

/// A data type, or none if the name is empty.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Dtype {
    pub name: &'static str,
    /// Bytes per element.
    pub bytes: u64,
}

impl Dtype {
    pub fn at(index: usize) -> Self {
        DTYPES.get(index).copied().unwrap_or_default()
    }

    /// Returns the data type with this name in JAX and CuPy.
    pub fn of_array(name: &str) -> Option<Self> {
        DTYPES.iter().chain(ARRAY_DTYPES).find(|dtype| dtype.name == name).copied()
    }
}
