#!/usr/bin/env bash
# The built-in recording: four GPUs, of which two train, one loses its cache to fragmentation, one has a label too many
# and then a leak. record.sh GPUTOP FILE [SECONDS]
set -euo pipefail
gputop=$1 file=$2 seconds=${3:-230}
here=$(cd "$(dirname "$0")" && pwd)
logs=$(mktemp -d)
cd "$logs"
cp "$here"/*.py "$here/../train.py" .
XDG_STATE_HOME="$logs" "$gputop" record --force -o "$file" --maps 2s --for "${seconds}s" 2>record.log &
recording=$!
sleep 3
UNTIL=$(($(date +%s) + seconds)) torchrun --nproc-per-node 2 train.py >train.log 2>&1 &
CUDA_VISIBLE_DEVICES=2 python3 fragment.py 0 $((seconds * 6 / 10)) >fragment.log 2>&1 &
CUDA_VISIBLE_DEVICES=3 python3 labels.py 0 25 >labels.log 2>&1 || true
CUDA_VISIBLE_DEVICES=3 python3 leak.py 0 $((seconds * 5 / 10)) >leak.log 2>&1 &
wait "$recording" || { cat record.log; exit 1; }
pkill -f train.py || true
tail -n 4 ./*.log
