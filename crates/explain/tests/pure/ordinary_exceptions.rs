//! An ordinary exception of a Python program, and a warning that it survived, are not incidents.

use gputop_explain::{Catalogue, explain};

/// Exceptions whose message says what is wrong.
const ORDINARY: &[&str] = &[
    "RuntimeError: mat1 and mat2 shapes cannot be multiplied (16x9216 and 4096x10)",
    "RuntimeError: The size of tensor a (700) must match the size of tensor b (514) at non-singleton dimension 1",
    "RuntimeError: Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cpu!",
    "RuntimeError: mat1 and mat2 must have the same dtype, but got Half and Float",
    "TypeError: can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu() to copy the tensor to host memory first.",
    "RuntimeError: Error(s) in loading state_dict for Net:\n\tsize mismatch for fc.weight: copying a param with shape \
     torch.Size([10, 64]) from checkpoint, the shape in current model is torch.Size([12, 64]).",
    "OSError: You are trying to access a gated repo.\nMake sure to have access to it at https://huggingface.co/acme/base.\n\
     401 Client Error. (Request ID: Root=1)\nAccess to model acme/base is restricted. You must be authenticated to access it.",
    "ModuleNotFoundError: No module named 'flash_attn'",
    "ImportError: cannot import name 'foo' from 'transformers' (/env/transformers/__init__.py)",
    "ImportError: Using `bitsandbytes` 4-bit quantization requires the latest version of bitsandbytes: `pip install -U bitsandbytes`",
    "IndexError: index 12 is out of bounds for dimension 0 with size 12",
    "TypeError: TrainingArguments.__init__() got an unexpected keyword argument 'learning_rat'",
    "AttributeError: Can't pickle local object 'build.<locals>.<lambda>'",
    "KeyError: Caught KeyError in DataLoader worker process 3.",
    "RuntimeError: Parent directory runs/exp1 does not exist.",
    "ValueError: The model did not return a loss from the inputs, only the following keys: logits.",
    "KeyError: 'labels'",
];

/// Warnings of programs that continue.
const SURVIVED: &[&str] = &[
    "step 1203 loss: 2.31\nWARNING gradient norm is nan, skipping optimizer step\nstep 1204 loss: 2.30\n",
    "step 1203 loss: 2.31\nstep 1204 loss: nan\nstep 1205 loss: 2.30\n",
    "step 1203 loss: 2.31\nstep 1204 loss: nan\n",
    "WARNING:root:Non-finite loss, skipping batch\nstep 5 loss: 1.0\n",
    "{'loss': 0.0, 'grad_norm': nan, 'epoch': 1.27}\n{'loss': 2.1, 'grad_norm': 1.0, 'epoch': 1.28}\n",
    "[WARNING] [stage3.py:1850:step] 3 pytorch allocator cache flushes since last step. this happens when there is high memory pressure\n",
];

const TIMEOUT: &str = "[rank0]:[E101 10:10:00.1 ProcessGroupNCCL.cpp:616] [Rank 0] Watchdog caught collective operation timeout: \
     WorkNCCL(SeqNum=120, OpType=ALLREDUCE, NumelIn=64, NumelOut=64, Timeout(ms)=600000) ran for 600010 milliseconds before timing out.\n";

const TABLE: &str = "torch.distributed.elastic.multiprocessing.errors.ChildFailedError:\nRoot Cause (first observed failure):\n[0]:\n  \
     time      : 2026-01-01_00:00:00\n  host      : n1\n  rank      : 1 (local_rank: 1)\n  exitcode  : 1 (pid: 811)\n  error_file: <N/A>\n";

fn traceback(exception: &str) -> String {
    format!(
        "Traceback (most recent call last):\n  File \"/home/ana/train.py\", line 31, in <module>\n    out = model(x)\n{exception}\n"
    )
}

fn ids(log: &str) -> Vec<String> {
    let found = explain(Catalogue::embedded(), "x.log", log.as_bytes());
    found.into_iter().map(|incident| incident.id).collect()
}

#[test]
fn ordinary_exceptions_are_not_incidents() {
    for exception in ORDINARY {
        assert_eq!(ids(&traceback(exception)), [""; 0], "{exception}");
    }
}

#[test]
fn warnings_of_a_program_that_continues_are_not_incidents() {
    for log in SURVIVED {
        assert_eq!(ids(log), [""; 0], "{log}");
    }
    let lost = "step 1204 loss: nan\nstep 1205 loss: nan\n";
    assert_eq!(ids(lost), ["training-nan"]);
}

#[test]
fn an_ordinary_exception_is_the_cause_of_a_gpu_failure_that_followed() {
    for exception in ORDINARY {
        let text = traceback(exception);
        let rank: String = text.lines().map(|line| format!("[rank1]: {line}\n")).collect();
        let found = explain(Catalogue::embedded(), "x.log", format!("{rank}{TIMEOUT}").as_bytes());
        assert_eq!(found[0].id, "program-exception", "{exception}");
        assert_eq!(found[0].secondary[0].id, "nccl-watchdog-timeout", "{exception}");
    }
}

/// The launcher's table says only that the process exited.
#[test]
fn the_report_of_a_launcher_does_not_make_an_exception_an_incident() {
    let log = format!("{}{TABLE}", traceback(ORDINARY[0]));
    assert_eq!(ids(&log), [""; 0]);
    assert_eq!(ids(TABLE), ["torchrun-summary"]);
}
