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
        "quantized tensor",
    ),
    // Names in torch.optim.swa_utils, torch_ema and timm.
    (
        &["ema", "ema_model", "model_ema", "shadow_params", "averaged_model", "swa_model"],
        "averaged copy of a model",
    ),
];

/// Returns the purpose of tensors with this name, such as `KV cache` for `cache.key_cache[*]`.
pub fn purpose(name: &str) -> Option<&'static str> {
    let name = name.to_lowercase();
    let mut parts = name.split(['.', '[', ']', '\'']);
    parts.find_map(|part| {
        let purposes = PURPOSES.iter();
        let found = purposes.filter(|(names, _)| names.contains(&part));
        found.map(|(_, purpose)| *purpose).next()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_libraries_are_recognized() {
        for (name, expected) in [
            ("model.base_model.model.layers.*.q_proj.lora_A.default.weight", Some("PEFT adapter")),
            ("model._fsdp_wrapped_module._flat_param", Some("flattened FSDP parameter")),
            ("generator.past_key_values.key_cache[*]", Some("KV cache")),
            ("state['kv_cache'][*]", Some("KV cache")),
            ("model.layers.*.weight.quant_state.absmax", Some("quantized tensor")),
            ("trainer.ema.layers.*.weight", Some("averaged copy of a model")),
            ("model.layers.*.weight", None),
            ("schema.weight", None),
            ("", None),
        ] {
            assert_eq!(purpose(name), expected, "{name}");
        }
    }
}
