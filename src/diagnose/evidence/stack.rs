//! Evidence from the Python stack above a message.

use super::{Case, Evidence, Finding};

pub(super) const EVIDENCE: &[Evidence] = &[
    Evidence {
        name: "in-backward",
        judge: |c| names(c, &["backward", "run_backward"], &[".backward("]),
    },
    Evidence {
        name: "in-optimizer",
        judge: |c| {
            names(
                c,
                &[
                    "optimizer_step",
                    "_optimizer_step",
                    "_init_group",
                    "_multi_tensor_adam",
                    "_single_tensor_adam",
                    "adamw",
                    "initialize_optimizer_states",
                ],
                &["optimizer.step(", "optim.step(", ".step(closure"],
            )
        },
    },
    Evidence {
        name: "in-evaluation",
        judge: |c| {
            names(
                c,
                &[
                    "evaluate",
                    "evaluation_loop",
                    "validate",
                    "validation_step",
                    "validation",
                    "predict",
                    "prediction_step",
                    "test_step",
                    "eval_step",
                    "generate",
                    "inference",
                    "eval_epoch",
                    "run_validation",
                ],
                &[],
            )
        },
    },
    Evidence {
        name: "in-ddp-setup",
        judge: |c| {
            names(
                c,
                &[
                    "_sync_module_states",
                    "_ddp_init_helper",
                    "_verify_param_shape_across_processes",
                ],
                &[
                    "DistributedDataParallel(",
                    "DDP(",
                    "FullyShardedDataParallel(",
                ],
            )
        },
    },
    Evidence {
        name: "in-load",
        judge: |c| {
            names(
                c,
                &[
                    "load_state_dict",
                    "_load_state_dict",
                    "load_checkpoint",
                    "from_pretrained",
                    "_rebuild_tensor_v2",
                    "persistent_load",
                    "load_model",
                    "default_restore_location",
                ],
                &["torch.load(", ".load_state_dict(", "from_pretrained("],
            )
        },
    },
    Evidence {
        name: "in-attention",
        judge: |c| {
            names(
                c,
                &[
                    "scaled_dot_product_attention",
                    "attention",
                    "self_attention",
                    "_attn",
                    "multi_head_attention_forward",
                ],
                &[
                    "softmax(",
                    "attn_weights",
                    "scores =",
                    "attention_probs",
                    "@ k.transpose",
                    "baddbmm",
                ],
            )
        },
    },
    Evidence {
        name: "in-dataloader",
        judge: |c| {
            names(
                c,
                &[
                    "_try_get_data",
                    "_next_data",
                    "_process_data",
                    "_worker_loop",
                ],
                &[],
            )
        },
    },
    Evidence {
        name: "in-pin-memory",
        judge: |c| {
            names(
                c,
                &["pin_memory", "_pin_memory_loop", "do_one_step"],
                &[".pin_memory("],
            )
        },
    },
    Evidence {
        name: "in-compiled",
        judge: |c| files(c, &["_dynamo", "_inductor", "torchinductor"]),
    },
    Evidence {
        name: "in-graph-capture",
        judge: |c| {
            names(
                c,
                &[
                    "capture_begin",
                    "capture_end",
                    "make_graphed_callables",
                    "capture_model",
                    "_capture_cudagraphs",
                ],
                &["torch.cuda.graph("],
            )
        },
    },
];

/// Finds the innermost frame with one of the functions, or one of the code fragments in the innermost source line.
/// Source of outer frames does not count: in `net(x).backward()` the failure can be in `net`.
fn names(case: &Case<'_>, functions: &[&str], code: &[&str]) -> Finding {
    let last = case.frames.len().saturating_sub(1);
    let found = case.frames.iter().enumerate().rev().find(|(n, frame)| {
        let source = frame
            .code
            .as_deref()
            .filter(|_| *n == last)
            .unwrap_or_default();
        functions.contains(&frame.function.as_str()) || code.iter().any(|c| source.contains(c))
    });
    found.map_or(Finding::Silent, |(_, frame)| {
        let file = super::super::tables::base_name(&frame.file);
        let place = format!("{file}:{}", frame.line);
        Finding::For(match &frame.code {
            Some(code) if code.len() <= 60 => format!("the stack shows {code} at {place}"),
            _ => format!("the stack shows {} ({place})", frame.function),
        })
    })
}

fn files(case: &Case<'_>, parts: &[&str]) -> Finding {
    let found = case
        .frames
        .iter()
        .rev()
        .find(|f| parts.iter().any(|p| f.file.contains(p)));
    found.map_or(Finding::Silent, |_| {
        Finding::For("the stack contains compiled code".into())
    })
}
