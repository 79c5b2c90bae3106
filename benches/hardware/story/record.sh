#!/usr/bin/env bash
# The built-in recording: two GPUs, on which a model is trained, and one rank holds up the other for 75 s. Beside it, a server
# with JAX takes a fixed share of the first GPU; a program there runs out of memory for fragmentation, with its allocations
# recorded, and then again with the setting that the explanation puts first (whatif/saved.py). On the second GPU, a notebook
# is idle, a program has a label too many, and another keeps the loss of each step. record.sh GPUTOP FILE
#
# SAVED, a folder, keeps what was said of the failure.
set -euo pipefail
gputop=$(realpath "$1") file=$(realpath "$2") seconds=${3:-300}
here=$(cd "$(dirname "$0")" && pwd)
logs=$(mktemp -d)
cd "$logs"
cp "$here"/*.py "$here/../notebook.py" .
export XDG_STATE_HOME="$logs" NCCL_NVLS_ENABLE=0
"$gputop" record --force -o "$file" --maps 2s --record-names --for "${seconds}s" 2>record.log &
recording=$!
sleep 2
start=$(date +%s)
STALL_AT=$((start + 150)) STALL_SECONDS=75 UNTIL=$((start + seconds)) torchrun --nproc-per-node 2 ddp.py >train.log 2>&1 &
CUDA_VISIBLE_DEVICES=0 XLA_PYTHON_CLIENT_MEM_FRACTION=.15 python3 serve.py >serve.log 2>&1 &
others=$!
CUDA_VISIBLE_DEVICES=1 python3 notebook.py 0 4 "$seconds" >notebook.log 2>&1 &
others="$others $!"
sleep 40
python3 "$here/../whatif/saved.py" "$gputop" "${SAVED:-$logs/saved}" 70 0 >saved.log 2>&1 &
CUDA_VISIBLE_DEVICES=1 python3 labels.py 0 20 >labels.log 2>&1 || true
CUDA_VISIBLE_DEVICES=1 python3 leak.py 0 165 >leak.log 2>&1 &
wait "$recording" || { cat record.log; exit 1; }
kill $others
pkill -f ddp.py || true
tail -n 4 ./*.log
