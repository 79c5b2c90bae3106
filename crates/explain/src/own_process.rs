//! Identifies the writer of an out-of-memory message among the processes listed in the message.

use serde_json::Value;

use super::fields::FieldMap;

/// Maximum memory of a process outside PyTorch's pools in bytes: context, libraries, NCCL buffers.
const MAX_CONTEXT: u64 = 3 << 30;
/// Tolerance in bytes for sizes that are printed with two decimals.
const TOLERANCE: u64 = 16 << 20;

/// Moves the process that wrote the message from `other_processes` to `process_bytes`. In a container, PyTorch cannot
/// determine its PID on the host, so it lists its own process among the others. Its own process uses the memory that
/// PyTorch reserved, plus at most a context; or it uses so much that both could not fit on the GPU.
pub(super) fn separate(found: &mut FieldMap) {
    if found.contains_key("process_bytes") {
        return;
    }
    let get = |name: &str| found.get(name).and_then(Value::as_u64);
    let Some(allocated) = get("allocated_bytes") else {
        return;
    };
    let reserved = get("reserved_unallocated_bytes")
        .map_or_else(|| get("reserved_bytes").unwrap_or(allocated), |ru| allocated + ru);
    let total = get("total_bytes");
    let Some(others) = found.get_mut("other_processes").and_then(Value::as_array_mut) else {
        return;
    };
    let is_own = |p: &Value| {
        p["bytes"].as_u64().is_some_and(|b| {
            let is_near = b + TOLERANCE >= reserved && b <= reserved + MAX_CONTEXT;
            is_near || total.is_some_and(|total| b + reserved > total + TOLERANCE)
        })
    };
    let Some(own) = others.iter().position(is_own) else {
        return;
    };
    let own = others.remove(own);
    let is_empty = others.is_empty();
    found.insert("process_bytes".into(), own["bytes"].clone());
    if is_empty {
        found.remove("other_processes");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(found: Value) -> Value {
        let mut found = found.as_object().cloned().unwrap_or_default();
        separate(&mut found);
        Value::Object(found)
    }

    #[test]
    fn recognizes_the_process_that_holds_the_cache() {
        let gib = 1_u64 << 30;
        let list = serde_json::json!([{"pid": 1, "bytes": 2 * gib}, {"pid": 2, "bytes": 11 * gib}]);
        let found = after(serde_json::json!({
            "allocated_bytes": 9 * gib, "reserved_unallocated_bytes": gib, "other_processes": list
        }));
        assert_eq!(found["process_bytes"], 11 * gib);
        assert_eq!(found["other_processes"], serde_json::json!([{"pid": 1, "bytes": 2 * gib}]));
    }

    #[test]
    fn two_processes_cannot_hold_more_than_the_gpu_has() {
        let gib = 1_u64 << 30;
        let found = after(serde_json::json!({
            "allocated_bytes": 60 * gib, "reserved_unallocated_bytes": gib, "total_bytes": 80 * gib,
            "other_processes": [{"pid": 1, "bytes": 79 * gib}]
        }));
        assert_eq!(found["process_bytes"], 79 * gib);
    }

    #[test]
    fn does_not_take_another_process_for_it() {
        let gib = 1_u64 << 30;
        let found = after(serde_json::json!({
            "allocated_bytes": gib, "reserved_unallocated_bytes": 0, "other_processes": [{"pid": 1, "bytes": 40 * gib}]
        }));
        assert_eq!(found.get("process_bytes"), None);
    }
}
