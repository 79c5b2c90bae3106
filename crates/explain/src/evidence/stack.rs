//! Evaluates evidence from the Python stack above an error message.

use super::super::tables::base_name;
use super::super::traceback::TracebackFrame;
use crate::evidence::case::{Case, EvidenceRule, Finding, supports};

pub(super) const EVIDENCE: &[EvidenceRule] = &[
    ("in-backward", |c| names(c, &["backward", "run_backward"], &[".backward("])),
    ("in-optimizer", |c| {
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
    }),
    ("in-evaluation", |c| {
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
    }),
    ("in-ddp-setup", |c| {
        names(
            c,
            &["_sync_module_states", "_ddp_init_helper", "_verify_param_shape_across_processes"],
            &["DistributedDataParallel(", "DDP(", "FullyShardedDataParallel("],
        )
    }),
    ("in-load", |c| {
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
                "_load_pretrained_model",
                "_load_state_dict_into_meta_model",
                "_load_state_dict_into_model",
                "_load_parameter_into_model",
                "load_checkpoint_in_model",
                "set_module_tensor_to_device",
                "load_model_and_tokenizer",
            ],
            &["torch.load(", ".load_state_dict(", "from_pretrained("],
        )
    }),
    ("in-save", |c| {
        names(
            c,
            &[
                "state_dict",
                "_full_pre_state_dict_hook",
                "_common_unshard_pre_state_dict_hook",
                "_summon_full_params",
                "get_model_state_dict",
                "save_model",
                "save_pretrained",
                "_save_checkpoint",
                "save_checkpoint",
            ],
            &[".state_dict()"],
        )
    }),
    ("in-model-move", model_move),
    ("in-attention", |c| {
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
                // Not `log_softmax(`, which is applied to logits.
                " softmax(",
                ".softmax(",
                "attn_weights",
                "scores =",
                "attention_probs",
                "@ k.transpose",
                "baddbmm",
            ],
        )
    }),
    ("in-dataloader", |c| {
        names(c, &["_try_get_data", "_next_data", "_process_data", "_worker_loop"], &[])
    }),
    ("in-pin-memory", |c| {
        names(c, &["pin_memory", "_pin_memory_loop", "do_one_step"], &[".pin_memory("])
    }),
    ("in-compiled", |c| files(c, &["_dynamo", "_inductor", "torchinductor"])),
    ("package-kernel", package_kernel),
    ("own-kernel", own_kernel),
    ("attention-kernel", attention_kernel),
    ("engine-error-known", engine_error_known),
    ("code-collects", |case| code_collects(case, |_| true)),
    ("code-collects-outputs", |case| code_collects(case, |line| !line.contains("loss"))),
    ("code-sums", |case| {
        code_collects(case, |line| line.contains("loss += ") || line.contains("_loss + "))
    }),
    ("code-concatenates", code_concatenates),
    ("in-kv-cache", in_kv_cache),
    ("code-pins", |c| own_code(c, &["pin_memory=True", ".pin_memory(", "pin_memory ="])),
    ("code-vocabulary", |c| own_code(c, &["lm_head", "logits", "cross_entropy"])),
    ("code-evaluates", code_evaluates),
    ("no-grad-missing", no_grad_missing),
    ("in-graph-capture", |c| {
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
    }),
];

/// Finds the innermost frame whose function is in `functions`, or a fragment from `code` in the innermost source line.
/// Ignores source lines of outer frames: in `net(x).backward()`, the failure may be inside `net`.
fn names(case: &Case<'_>, functions: &[&str], code: &[&str]) -> Option<Finding> {
    let last = case.frames.len().saturating_sub(1);
    let (_, frame) = case.frames.iter().enumerate().rev().find(|(n, frame)| {
        let source = frame.code.as_deref().filter(|_| *n == last).unwrap_or_default();
        functions.contains(&frame.function.as_str()) || code.iter().any(|c| source.contains(c))
    })?;
    let place = place(frame);
    Some(Finding::For(match &frame.code {
        Some(code) if code.len() <= 60 => format!("the stack shows {code} at {place}"),
        _ => format!("the stack shows {} ({place})", frame.function),
    }))
}

/// Returns the frame that launched a Triton kernel: the innermost frame outside Triton and torch.
fn launching_frame(frames: &[TracebackFrame]) -> Option<&TracebackFrame> {
    let is_tool = |frame: &TracebackFrame| {
        frame.file.split(['/', '\\']).any(|part| ["triton", "torch"].contains(&part))
    };
    let is_triton = frames.last()?.file.split(['/', '\\']).any(|part| part == "triton");
    frames.iter().rev().find(|frame| !is_tool(frame)).filter(|_| is_triton)
}

/// Returns the installed package that launched a Triton kernel, as its directory is named.
#[must_use]
pub(crate) fn kernel_package(frames: &[TracebackFrame]) -> Option<String> {
    let frame = launching_frame(frames).filter(|frame| !frame.is_users())?;
    let parts: Vec<&str> = frame.file.split(['/', '\\']).collect();
    let directories = parts.get(..parts.len().checked_sub(1)?)?;
    let after = |name: &str| {
        let at = directories.iter().position(|part| *part == name)?;
        directories.get(at + 1).copied()
    };
    let installed = after("site-packages").or_else(|| after("dist-packages"));
    // A source checkout, such as `/src/vllm/vllm/v1/sample.py`.
    let checkout = || ["vllm", "sglang"].into_iter().find(|name| directories.contains(name));
    installed.or_else(checkout).map(str::to_owned)
}

fn package_kernel(case: &Case<'_>) -> Option<Finding> {
    let (frame, package) = launching_frame(case.frames).zip(kernel_package(case.frames))?;
    Some(Finding::For(format!("{package} launched the kernel at {}", place(frame))))
}

fn own_kernel(case: &Case<'_>) -> Option<Finding> {
    let frame = launching_frame(case.frames).filter(|frame| frame.is_users())?;
    Some(Finding::For(format!("your code launched the kernel at {}", place(frame))))
}

/// Checks whether the failing Triton kernel computes attention, so that another attention kernel avoids it.
fn attention_kernel(case: &Case<'_>) -> Option<Finding> {
    const NAMES: [&str; 4] = ["attn", "attention", "sage", "mla"];
    let is_named = |text: &str| {
        let text = text.to_ascii_lowercase();
        NAMES.iter().any(|name| text.contains(name))
    };
    match launching_frame(case.frames) {
        Some(frame) => {
            let is_attention = is_named(&frame.function) || is_named(base_name(&frame.file));
            supports(is_attention, || format!("the kernel at {} computes attention", place(frame)))
        }
        None => supports(is_named(case.context), || "the log mentions attention".into()),
    }
}

fn engine_error_known(case: &Case<'_>) -> Option<Finding> {
    let is_known = case.found.contains_key("engine_error");
    supports(is_known, || "the log contains the engine's exception".into())
}

fn own_frame<'c>(case: &Case<'c>) -> Option<&'c TracebackFrame> {
    case.frames.iter().rev().find(|frame| frame.is_users())
}

fn place(frame: &TracebackFrame) -> String {
    format!("{}:{}", base_name(&frame.file), frame.line)
}

/// Checks whether the user's failing line moves a model to the GPU (`torch.nn.Module._apply`).
fn model_move(case: &Case<'_>) -> Option<Finding> {
    const MOVES: [&str; 4] = ["model.to(", "model.cuda(", "net.to(", "net.cuda("];
    let is_apply = |f: &TracebackFrame| f.function == "_apply" && base_name(&f.file) == "module.py";
    let moves =
        |f: &TracebackFrame| MOVES.iter().any(|m| f.code.as_deref().is_some_and(|c| c.contains(m)));
    if !case.frames.iter().any(is_apply) && !case.frames.last().is_some_and(moves) {
        return None;
    }
    let place = own_frame(case).map(place);
    Some(Finding::For(match place {
        Some(place) => format!("the model was being moved to the GPU at {place}"),
        None => "the model was being moved to the GPU".into(),
    }))
}

/// Finds one of the code fragments in the user's failing line.
fn own_code(case: &Case<'_>, fragments: &[&str]) -> Option<Finding> {
    let frame = own_frame(case)?;
    let code = frame.code.as_deref()?;
    supports(fragments.iter().any(|f| code.contains(f)), || {
        format!("the failing line is {} at {}", shortened(code), place(frame))
    })
}

/// Finds code that stores results on the GPU, in the user's failing line or in the function around it. Ignores lines
/// for which `is_meant` returns false.
fn code_collects(case: &Case<'_>, is_meant: fn(&str) -> bool) -> Option<Finding> {
    const RESULTS: &[&str] =
        &["loss", "out", "logit", "pred", "feat", "embed", "hidden", "net(", "model(", "score"];
    let keeps = |line: &&str| {
        let is_moved = [".item()", ".detach()", ".cpu()", "float("];
        let collects = line.contains(".append(") || line.contains(".extend(");
        let adds = line.contains("loss += ") || line.contains("loss = total_loss +");
        (adds || (collects && RESULTS.iter().any(|r| line.contains(r))))
            && is_meant(line)
            && !is_moved.iter().any(|m| line.contains(m))
    };
    let frame = own_frame(case)?;
    let lines = frame.code.iter().flat_map(|code| code.lines());
    let source = frame.source.iter().flat_map(|source| source.lines());
    let line = lines.chain(source).find(keeps)?;
    Some(Finding::For(format!(
        "{} keeps tensors on the GPU: {}",
        base_name(&frame.file),
        shortened(line.trim())
    )))
}

/// Checks whether the user's failing line appends to a tensor: `cache[i] = torch.cat([cache[i], keys], dim=1)`.
fn code_concatenates(case: &Case<'_>) -> Option<Finding> {
    const CALLS: [&str; 5] =
        ["torch.cat(", "torch.concat(", "torch.concatenate(", "torch.vstack(", "torch.hstack("];
    let appends = |code: &str| {
        let (target, value) = code.split_once(" = ")?;
        let parts = CALLS.iter().find_map(|call| value.trim_start().strip_prefix(call))?;
        let first = parts.trim_start_matches(['[', '(', ' ']).strip_prefix(target.trim())?;
        first.starts_with(',').then_some(())
    };
    let frame = own_frame(case)?;
    let code = frame.code.as_deref()?;
    appends(code)?;
    let (code, place) = (shortened(code), place(frame));
    Some(Finding::For(format!("the failing line appends to a tensor: {code} at {place}")))
}

/// Checks whether the function around the user's failing line evaluates a model without computing gradients.
fn code_evaluates(case: &Case<'_>) -> Option<Finding> {
    let frame = own_frame(case)?;
    let source = frame.source.as_deref()?;
    supports(source.contains(".eval()") && !source.contains(".backward("), || {
        format!("{} calls eval() before this line", base_name(&frame.file))
    })
}

/// Checks whether the KV cache of Transformers made the failed request (`transformers/cache_utils.py`).
fn in_kv_cache(case: &Case<'_>) -> Option<Finding> {
    let frame = case.frames.last()?;
    supports(base_name(&frame.file) == "cache_utils.py", || {
        format!("the KV cache was growing ({})", place(frame))
    })
}

fn no_grad_missing(case: &Case<'_>) -> Option<Finding> {
    let frame = own_frame(case)?;
    let source = frame.source.as_deref()?;
    let place = place(frame);
    if source.contains("no_grad") || source.contains("inference_mode") {
        return Some(Finding::Against(format!("the code around {place} disables gradients")));
    }
    Some(Finding::For(format!("the function at {place} contains no torch.no_grad()")))
}

fn shortened(code: &str) -> String {
    const MAX_CODE: usize = 60;
    gputop_model::text::visible(code.as_bytes(), MAX_CODE)
}

fn files(case: &Case<'_>, parts: &[&str]) -> Option<Finding> {
    let has_part = |frame: &TracebackFrame| parts.iter().any(|part| frame.file.contains(part));
    supports(case.frames.iter().any(has_part), || "the stack contains compiled code".into())
}
