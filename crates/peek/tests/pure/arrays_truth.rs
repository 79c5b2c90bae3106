//! Compares the arrays of JAX and CuPy with those that the program itself reports (tests/fake_cuda/jax_arrays.py).

use gputop_model::holders::{HeldTensor, Holders};
use serde_json::Value;

/// Name, device, data type and shape, and bytes on the device.
type Part = (String, u32, String, u64);

/// Checks that the names, sizes, data types and shapes of all arrays are equal. Returns their number, which counts an
/// array once for each device.
pub fn check(reported: &Value, holders: &Holders) -> usize {
    let parts = holders.groups.iter().flat_map(|group| {
        let part = |tensor: &HeldTensor| {
            let name = if tensor.name.is_empty() { group.class.name() } else { &tensor.name };
            let what = format!("{} {:?}", tensor.dtype, tensor.shape);
            (name.to_owned(), group.ordinal, what, tensor.bytes.0)
        };
        group.tensors.iter().map(part)
    });
    let mut found: Vec<Part> = parts.collect();
    let mut expected: Vec<Part> = Vec::new();
    for array in reported["arrays"].as_array().unwrap() {
        let text = |name: &str| array[name].as_str().unwrap().to_owned();
        let shape: Vec<u64> = serde_json::from_value(array["shape"].clone()).unwrap();
        let blocks: Vec<(u32, u64)> = serde_json::from_value(array["blocks"].clone()).unwrap();
        let what = format!("{} {shape:?}", text("dtype"));
        let part = |(device, bytes)| (text("name"), device, what.clone(), bytes);
        expected.extend(blocks.into_iter().map(part));
    }
    found.sort();
    expected.sort();
    assert_eq!(found, expected, "{}", reported["version"]);
    // A dump is read without the pools.
    let (limit, expected) = (holders.limit.as_deref(), reported["limit"].as_str());
    assert!(expected.unwrap_or("").starts_with(limit.unwrap_or("")), "{limit:?}");
    found.len()
}
