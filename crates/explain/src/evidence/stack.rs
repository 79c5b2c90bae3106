//! Evaluates evidence from the Python stack above an error message.

use super::super::tables::base_name;
use super::super::traceback::TracebackFrame;
use crate::evidence::case::{Case, EvidenceRule, Finding};

pub(super) const EVIDENCE: &[EvidenceRule] = &[
    EvidenceRule {
        name: "in-backward",
        evaluate: |c| names(c, &["backward", "run_backward"], &[".backward("]),
    },
    EvidenceRule {
        name: "in-optimizer",
        evaluate: |c| {
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
    EvidenceRule {
        name: "in-evaluation",
        evaluate: |c| {
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
    EvidenceRule {
        name: "in-ddp-setup",
        evaluate: |c| {
            names(
                c,
                &[
                    "_sync_module_states",
                    "_ddp_init_helper",
                    "_verify_param_shape_across_processes",
                ],
                &["DistributedDataParallel(", "DDP(", "FullyShardedDataParallel("],
            )
        },
    },
    EvidenceRule {
        name: "in-load",
        evaluate: |c| {
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
        },
    },
    EvidenceRule {
        name: "in-save",
        evaluate: |c| {
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
        },
    },
    EvidenceRule { name: "in-model-move", evaluate: model_move },
    EvidenceRule {
        name: "in-attention",
        evaluate: |c| {
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
        },
    },
    EvidenceRule {
        name: "in-dataloader",
        evaluate: |c| {
            names(c, &["_try_get_data", "_next_data", "_process_data", "_worker_loop"], &[])
        },
    },
    EvidenceRule {
        name: "in-pin-memory",
        evaluate: |c| {
            names(c, &["pin_memory", "_pin_memory_loop", "do_one_step"], &[".pin_memory("])
        },
    },
    EvidenceRule {
        name: "in-compiled",
        evaluate: |c| files(c, &["_dynamo", "_inductor", "torchinductor"]),
    },
    EvidenceRule { name: "package-kernel", evaluate: package_kernel },
    EvidenceRule { name: "own-kernel", evaluate: own_kernel },
    EvidenceRule { name: "attention-kernel", evaluate: attention_kernel },
    EvidenceRule { name: "engine-error-known", evaluate: engine_error_known },
    EvidenceRule { name: "code-collects", evaluate: |case| code_collects(case, |_| true) },
    EvidenceRule {
        name: "code-collects-outputs",
        evaluate: |case| code_collects(case, |line| !line.contains("loss")),
    },
    EvidenceRule {
        name: "code-sums",
        evaluate: |case| {
            code_collects(case, |line| line.contains("loss += ") || line.contains("_loss + "))
        },
    },
    EvidenceRule { name: "code-concatenates", evaluate: code_concatenates },
    EvidenceRule { name: "in-kv-cache", evaluate: in_kv_cache },
    EvidenceRule {
        name: "code-pins",
        evaluate: |c| own_code(c, &["pin_memory=True", ".pin_memory(", "pin_memory ="]),
    },
    EvidenceRule {
        name: "code-vocabulary",
        evaluate: |c| own_code(c, &["lm_head", "logits", "cross_entropy"]),
    },
    EvidenceRule { name: "code-evaluates", evaluate: code_evaluates },
    EvidenceRule { name: "no-grad-missing", evaluate: no_grad_missing },
    EvidenceRule {
        name: "in-graph-capture",
        evaluate: |c| {
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

/// Finds the innermost frame whose function is in `functions`, or a fragment from `code` in the innermost source line.
/// Ignores source lines of outer frames: in `net(x).backward()`, the failure may be inside `net`.
fn names(case: &Case<'_>, functions: &[&str], code: &[&str]) -> Finding {
    let last = case.frames.len().saturating_sub(1);
    let found = case.frames.iter().enumerate().rev().find(|(n, frame)| {
        let source = frame.code.as_deref().filter(|_| *n == last).unwrap_or_default();
        functions.contains(&frame.function.as_str()) || code.iter().any(|c| source.contains(c))
    });
    found.map_or(Finding::Silent, |(_, frame)| {
        let place = place(frame);
        Finding::For(match &frame.code {
            Some(code) if code.len() <= 60 => format!("the stack shows {code} at {place}"),
            _ => format!("the stack shows {} ({place})", frame.function),
        })
    })
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

fn package_kernel(case: &Case<'_>) -> Finding {
    let found = launching_frame(case.frames).zip(kernel_package(case.frames));
    found.map_or(Finding::Silent, |(frame, package)| {
        Finding::For(format!("{package} launched the kernel at {}", place(frame)))
    })
}

fn own_kernel(case: &Case<'_>) -> Finding {
    launching_frame(case.frames).filter(|frame| frame.is_users()).map_or(Finding::Silent, |frame| {
        Finding::For(format!("your code launched the kernel at {}", place(frame)))
    })
}

/// Checks whether the failing Triton kernel computes attention, so that another attention kernel avoids it.
fn attention_kernel(case: &Case<'_>) -> Finding {
    const NAMES: [&str; 4] = ["attn", "attention", "sage", "mla"];
    let is_named = |text: &str| {
        let text = text.to_ascii_lowercase();
        NAMES.iter().any(|name| text.contains(name))
    };
    let found = match launching_frame(case.frames) {
        Some(frame) => {
            let is_attention = is_named(&frame.function) || is_named(base_name(&frame.file));
            is_attention.then(|| format!("the kernel at {} computes attention", place(frame)))
        }
        None => is_named(case.context).then(|| "the log mentions attention".to_owned()),
    };
    found.map_or(Finding::Silent, Finding::For)
}

fn engine_error_known(case: &Case<'_>) -> Finding {
    match case.found.get("engine_error") {
        Some(_) => Finding::For("the log contains the engine's exception".into()),
        None => Finding::Silent,
    }
}

fn own_frame<'c>(case: &Case<'c>) -> Option<&'c TracebackFrame> {
    case.frames.iter().rev().find(|frame| frame.is_users())
}

fn place(frame: &TracebackFrame) -> String {
    format!("{}:{}", base_name(&frame.file), frame.line)
}

/// Checks whether the user's failing line moves a model to the GPU (`torch.nn.Module._apply`).
fn model_move(case: &Case<'_>) -> Finding {
    const MOVES: [&str; 4] = ["model.to(", "model.cuda(", "net.to(", "net.cuda("];
    let is_apply = |f: &TracebackFrame| f.function == "_apply" && base_name(&f.file) == "module.py";
    let moves =
        |f: &TracebackFrame| MOVES.iter().any(|m| f.code.as_deref().is_some_and(|c| c.contains(m)));
    if !case.frames.iter().any(is_apply) && !case.frames.last().is_some_and(moves) {
        return Finding::Silent;
    }
    let place = own_frame(case).map(place);
    Finding::For(match place {
        Some(place) => format!("the model was being moved to the GPU at {place}"),
        None => "the model was being moved to the GPU".into(),
    })
}

/// Finds one of the code fragments in the user's failing line.
fn own_code(case: &Case<'_>, fragments: &[&str]) -> Finding {
    let found = own_frame(case).and_then(|frame| {
        let code = frame.code.as_deref()?;
        let has_fragment = fragments.iter().any(|f| code.contains(f));
        has_fragment.then(|| format!("the failing line is {} at {}", shortened(code), place(frame)))
    });
    found.map_or(Finding::Silent, Finding::For)
}

/// Finds code that stores results on the GPU, in the user's failing line or in the function around it. Ignores lines
/// for which `is_meant` returns false.
fn code_collects(case: &Case<'_>, is_meant: fn(&str) -> bool) -> Finding {
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
    let found = own_frame(case).and_then(|frame| {
        let lines = frame.code.iter().flat_map(|code| code.lines());
        let source = frame.source.iter().flat_map(|source| source.lines());
        let line = lines.chain(source).find(keeps)?;
        Some(format!(
            "{} keeps tensors on the GPU: {}",
            base_name(&frame.file),
            shortened(line.trim())
        ))
    });
    found.map_or(Finding::Silent, Finding::For)
}

/// Checks whether the user's failing line appends to a tensor: `cache[i] = torch.cat([cache[i], keys], dim=1)`.
fn code_concatenates(case: &Case<'_>) -> Finding {
    const CALLS: [&str; 5] =
        ["torch.cat(", "torch.concat(", "torch.concatenate(", "torch.vstack(", "torch.hstack("];
    let appends = |code: &str| {
        let (target, value) = code.split_once(" = ")?;
        let parts = CALLS.iter().find_map(|call| value.trim_start().strip_prefix(call))?;
        let first = parts.trim_start_matches(['[', '(', ' ']).strip_prefix(target.trim())?;
        first.starts_with(',').then_some(())
    };
    let found = own_frame(case).and_then(|frame| {
        let code = frame.code.as_deref()?;
        appends(code)?;
        Some(format!(
            "the failing line appends to a tensor: {} at {}",
            shortened(code),
            place(frame)
        ))
    });
    found.map_or(Finding::Silent, Finding::For)
}

/// Checks whether the function around the user's failing line evaluates a model without computing gradients.
fn code_evaluates(case: &Case<'_>) -> Finding {
    let found = own_frame(case).and_then(|frame| {
        let source = frame.source.as_deref()?;
        let evaluates = source.contains(".eval()") && !source.contains(".backward(");
        evaluates.then(|| format!("{} calls eval() before this line", base_name(&frame.file)))
    });
    found.map_or(Finding::Silent, Finding::For)
}

/// Checks whether the KV cache of Transformers made the failed request (`transformers/cache_utils.py`).
fn in_kv_cache(case: &Case<'_>) -> Finding {
    match case.frames.last().filter(|frame| base_name(&frame.file) == "cache_utils.py") {
        Some(frame) => Finding::For(format!("the KV cache was growing ({})", place(frame))),
        None => Finding::Silent,
    }
}

fn no_grad_missing(case: &Case<'_>) -> Finding {
    let found = own_frame(case).and_then(|frame| Some((frame, frame.source.as_deref()?)));
    let Some((frame, source)) = found else {
        return Finding::Silent;
    };
    let place = place(frame);
    if source.contains("no_grad") || source.contains("inference_mode") {
        return Finding::Against(format!("the code around {place} disables gradients"));
    }
    Finding::For(format!("the function at {place} contains no torch.no_grad()"))
}

fn shortened(code: &str) -> String {
    const MAX_CODE: usize = 60;
    gputop_model::text::visible(code.as_bytes(), MAX_CODE)
}

fn files(case: &Case<'_>, parts: &[&str]) -> Finding {
    let found = case.frames.iter().rev().find(|f| parts.iter().any(|p| f.file.contains(p)));
    found.map_or(Finding::Silent, |_| Finding::For("the stack contains compiled code".into()))
}
