//! Recognizes the purpose of tensors by the names that libraries give them.

/// Lowercase parts of tensor names, with the purpose that they indicate.
const PURPOSES: &[(&[&str], &str)] = &[
    // PEFT.
    (
        &[
            "lora_a",
            "lora_b",
            "lora_embedding_a",
            "lora_embedding_b",
            "lora_magnitude_vector",
            "modules_to_save",
        ],
        "PEFT adapter",
    ),
    // FSDP1.
    (&["_flat_param", "flat_param"], "flattened FSDP parameter"),
    // DeepSpeed's runtime/zero and bf16_optimizer.py.
    (
        &[
            "bit16_groups_flat",
            "bf16_groups_flat",
            "fp16_groups_flat",
            "single_partition_of_fp32_groups",
            "fp32_groups_flat_partition",
            "fp16_partitioned_groups_flat",
            "fp32_partitioned_groups_flat",
            "parallel_partitioned_bit16_groups",
            "averaged_gradients",
            "grad_partitions_flat_buffer",
            "ds_tensor",
            "ds_secondary_tensor",
        ],
        "DeepSpeed partition",
    ),
    (&["ipg_buckets", "ipg_buffer"], "DeepSpeed gradient bucket"),
    // Names in Transformers and vLLM.
    (
        &[
            "past_key_values",
            "past_key_value",
            "key_cache",
            "value_cache",
            "kv_cache",
            "k_cache",
            "v_cache",
        ],
        "KV cache",
    ),
    // Names in bitsandbytes and torchao.
    (
        &["quant_state", "absmax", "scb", "qdata", "tensor_impl", "int_data", "packed_weight"],
        QUANTIZED,
    ),
    // Names in torch.optim.swa_utils, torch_ema and timm.
    (
        &["ema", "ema_model", "model_ema", "shadow_params", "averaged_model", "swa_model"],
        "averaged copy of a model",
    ),
];

/// Names that indicate a purpose only below another name: the other name, the name, and the purpose.
const NESTED_PURPOSES: &[(&str, &[&str], &str)] = &[
    // Caches of Transformers 4.54 and later: `layers[0].keys`.
    ("layers", &["keys", "values"], "KV cache"),
    // torchao's tensor subclasses, and Int8Params of bitsandbytes.
    ("weight", &["scale", "zero_point", "cb"], QUANTIZED),
];

pub(super) const QUANTIZED: &str = "quantized tensor";

/// Returns the purpose of tensors with this name, such as `KV cache` for `cache.key_cache[*]`.
pub fn purpose(name: &str) -> Option<&'static str> {
    let name = name.to_lowercase();
    let is_index = |part: &str| part.chars().all(|c| c == '*' || c.is_ascii_digit());
    let parts: Vec<&str> =
        name.split(['.', '[', ']', '\'']).filter(|part| !is_index(part)).collect();
    let single = |part: &&str| PURPOSES.iter().find(|(names, _)| names.contains(part));
    if let Some((_, purpose)) = parts.iter().find_map(single) {
        return Some(purpose);
    }
    let nested = |pair: &[&str]| {
        let [parent, part] = pair else { return None };
        NESTED_PURPOSES.iter().find(|(above, names, _)| above == parent && names.contains(part))
    };
    parts.windows(2).find_map(nested).map(|(.., purpose)| *purpose)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_libraries_are_recognized() {
        for (name, expected) in [
            ("model.base_model.model.layers.*.q_proj.lora_A.default.weight", Some("PEFT adapter")),
            ("model._fsdp_wrapped_module._flat_param", Some("flattened FSDP parameter")),
            ("engine.optimizer.single_partition_of_fp32_groups[*]", Some("DeepSpeed partition")),
            ("engine.module.*.weight.ds_tensor", Some("DeepSpeed partition")),
            ("generator.past_key_values.key_cache[*]", Some("KV cache")),
            ("state['kv_cache'][*]", Some("KV cache")),
            ("cache.layers[*].keys", Some("KV cache")),
            ("model.layers.*.values", Some("KV cache")),
            ("model.layers.*.weight.quant_state.absmax", Some("quantized tensor")),
            ("model.*.weight.scale", Some("quantized tensor")),
            ("model.attention.scale", None),
            ("lookup.keys", None),
            ("trainer.ema.layers.*.weight", Some("averaged copy of a model")),
            ("model.layers.*.weight", None),
            ("schema.weight", None),
            ("", None),
        ] {
            assert_eq!(purpose(name), expected, "{name}");
        }
    }
}
