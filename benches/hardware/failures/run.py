"""Runs every program of cases.py under `gputop run` and says which were explained as what they are.

run.py GPUTOP [CASE …]: under twelve minutes for all on one H200, with PyTorch, CuPy, JAX and Triton; a case whose
package is missing is left out. Two explanations are judged: that of the text alone (`gputop explain`), and that of
`gputop run`, which knows what the hook measured. Exit code 1 where one is wrong.
"""

import importlib.util
import json
import os
import re
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
LONGEST = 90

# Name: what it is, the ids that are right (none: nothing to explain), the cause that is, what else `run` must say.
NOTHING = ()
HOLE = "measured at the failure by the hook"
CASES = {
    "activations": (("oom-capacity",), "activations", None),
    "large_buffer": (("oom-capacity",), "attention-scores", None),
    "beyond_card": (("oom-absurd-request",), None, None),
    "fragmentation": (("oom-fragmentation",), "pieces", "the largest free block was 7.00 GiB, " + HOLE),
    "leak": (("oom-capacity", "oom-leak-growth"), None, None),
    "other_process": (("oom-other-process",), None, None),
    "no_context": (("oom-raw-cuda-alloc",), None, None),
    "fraction": (("oom-memory-fraction-limit",), "fraction", None),
    "first_step": (("oom-first-step-states",), "states-created", "no optimizer step had finished"),
    "eval_no_grad": (("oom-eval-no-grad",), "graph-recorded", None),
    "eval_keeps_outputs": (("oom-capacity", "oom-leak-growth", "oom-eval-no-grad"), "results-kept", None),
    "running_loss": (("oom-capacity", "oom-leak-growth"), "leak", None),
    "pinned_memory": (("host-pinned-exhaustion", "cuda-invalid-argument", "oom-raw-cuda-alloc"), None, None),
    "attention_matrix": (("oom-capacity",), "unfused-attention", None),
    "ranks_on_one_gpu": (("oom-other-process",), None, None),
    "growing_kv_cache": (("oom-capacity", "oom-leak-growth", "oom-fragmentation"), None, None),
    "swallowed_oom": (("oom-capacity",), None, None),
    "caught_and_done": (NOTHING, None, None),
    "cublas_no_memory": (("cublas-create-failed",), "no-memory", None),
    "cupy_oom": (("cupy-oom",), None, None),
    "jax_oom": (("jax-resource-exhausted",), None, None),
    "assert_embedding": (("assert-embedding-range",), None, None),
    "assert_cross_entropy": (("assert-loss-labels",), None, None),
    "assert_nll_2d": (("assert-loss-labels",), None, None),
    "assert_gather": (("assert-gather-scatter",), None, None),
    "assert_scatter": (("assert-gather-scatter",), None, None),
    "assert_index": (("assert-index-out-of-bounds",), None, None),
    "assert_multinomial": (("assert-sampling-nan",), None, None),
    "assert_bce": (("assert-bce-range",), None, None),
    "sampling_overflow": (("assert-sampling-nan",), None, None),
    "padding_label": (("assert-loss-labels",), "void", None),
    "triton_assert": (("assert-triton-device",), None, None),
    "triton_resources": (("triton-out-of-resources",), None, None),
    "illegal_access": (("cuda-illegal-address-700",), None, None),
    "misaligned": (("cuda-misaligned-716",), None, None),
    "launch_failure": (("cuda-launch-failure-719",), None, None),
    "triton_out_of_bounds": (("cuda-illegal-address-700",), None, None),
    "fork_after_init": (("cuda-fork-reinit",), None, None),
    "nccl_duplicate_gpu": (("nccl-duplicate-gpu",), None, None),
    "graph_capture": (("cuda-graph-capture-violation-900",), None, None),
    "internal_assert": (("internal-assert-torch",), None, None),
    "invalid_device": (("cuda-invalid-device-101",), None, None),
    "first_batch": (("assert-loss-labels",), None, None),
    "first_tokens": (("assert-embedding-range", "assert-index-out-of-bounds"), None, None),
    "first_weights": (("oom-absurd-request",), None, None),
    "no_visible_gpu": (("cuda-no-device-100",), None, None),
    "rank_without_gpu": (("cuda-invalid-device-101",), None, None),
    "wrong_setting": (("allocator-config",), None, None),
    "other_machines_checkpoint": (("cuda-invalid-device-101",), None, None),
    "early_fork": (("cuda-fork-reinit",), None, None),
    "sampled_nan": (("assert-sampling-nan",), None, None),
    "wrong_index": (("assert-gather-scatter", "assert-index-out-of-bounds"), None, None),
    "typo": (NOTHING, None, None),
    "wrong_argument": (NOTHING, None, None),
    "key_error": (NOTHING, None, None),
    "wrong_shapes": (NOTHING, None, None),
    "two_devices": (NOTHING, None, None),
    "exit_code_3": (NOTHING, None, None),
    "trains_well": (NOTHING, None, None),
}
NEEDS = {
    "cupy_oom": "cupy",
    "illegal_access": "cupy",
    "misaligned": "cupy",
    "launch_failure": "cupy",
    "jax_oom": "jax",
    "triton_out_of_bounds": "triton",
    "triton_assert": "triton",
    "triton_resources": "triton",
}
# The head of an explanation: what happened in capitals, at the right the card.
HEAD = re.compile(r"^[A-Z][A-Z0-9 ,'/().-]+\b.*  ([a-z0-9]+(?:-[a-z0-9]+)+)$", re.MULTILINE)


def watched(gputop, name, log):
    """What the program wrote, and what `gputop run` said below it."""
    command = [gputop, "run", "--", sys.executable, os.path.join(HERE, "cases.py"), name]
    with open(log, "w") as file:
        try:
            subprocess.run(command, stdout=file, stderr=file, stdin=subprocess.DEVNULL, timeout=LONGEST, check=False)
        except subprocess.TimeoutExpired:
            return "", "", "timeout"
    with open(log, errors="replace") as file:
        text = file.read()
    heads = list(HEAD.finditer(text))
    if not heads:
        return text, "", None
    return text[: heads[-1].start()], text[heads[-1].start() :], heads[-1].group(1)


def explained(gputop, text):
    """Id and first cause by the text alone."""
    command = [gputop, "explain", "--json", "-"]
    said = subprocess.run(command, input=text, capture_output=True, text=True, check=False).stdout
    incidents = json.loads(said)["incidents"] if said.strip().startswith("{") else []
    first = next((one for one in incidents if one["severity"] != "note"), None)
    if first is None:
        return None, None
    return first["id"], first["causes"][0]["id"] if first["causes"] else None


def judge(gputop, name, folder):
    ids, cause, says = CASES[name]
    began = time.monotonic()
    text, explanation, by_run = watched(gputop, name, os.path.join(folder, name + ".log"))
    took = time.monotonic() - began
    by_text, first_cause = explained(gputop, text)
    is_right = by_text in ids if ids else by_text is None
    is_right_too = by_run in ids if ids else by_run is None
    is_cause = cause is None or cause == first_cause
    said = says is None or says in " ".join(explanation.split())
    is_ok = is_right and is_right_too and is_cause and said
    expected = f"{'|'.join(ids) or '-'}{'/' + cause if cause else ''}"
    found = f"{by_text or '-'}/{first_cause or '-'}"
    print(f"{'ok' if is_ok else 'WRONG':6}{name:22}{expected:48}{found:48}{by_run or '-':34}{took:5.1f} s", flush=True)
    if not said:
        print(f"      run does not say: {says}")
    return is_ok


def main():
    gputop, chosen = sys.argv[1], sys.argv[2:] or list(CASES)
    folder = tempfile.mkdtemp(prefix="gputop-failures-")
    print(f"{'':6}{'case':22}{'expected':48}{'by the text':48}{'by gputop run':34}")
    wrong, done, left_out = [], 0, []
    for name in chosen:
        needs = NEEDS.get(name)
        if needs and importlib.util.find_spec(needs) is None:
            left_out.append(name)
            continue
        done += 1
        if not judge(gputop, name, folder):
            wrong.append(name)
    print(f"{done - len(wrong)} of {done} right; logs in {folder}")
    if left_out:
        print("left out, no package: " + ", ".join(left_out))
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
