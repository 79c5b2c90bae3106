#!/usr/bin/env bash
# The built-in recording: four GPUs, of which two train; one runs out of memory for fragmentation, with its allocations
# recorded, and then again with the setting that the explanation puts first (whatif/saved.py); one has a label too many
# and then a leak. record.sh GPUTOP FILE [SECONDS]
#
# SAVED, a folder, keeps what was said of the failure.
set -euo pipefail
gputop=$(realpath "$1") file=$(realpath "$2") seconds=${3:-230}
here=$(cd "$(dirname "$0")" && pwd)
logs=$(mktemp -d)
cd "$logs"
cp "$here"/*.py "$here/../train.py" .
export XDG_STATE_HOME="$logs"
"$gputop" record --force -o "$file" --maps 2s --for "${seconds}s" 2>record.log &
recording=$!
sleep 3
UNTIL=$(($(date +%s) + seconds)) torchrun --nproc-per-node 2 train.py >train.log 2>&1 &
python3 "$here/../whatif/saved.py" "$gputop" "${SAVED:-$logs/saved}" $((seconds * 4 / 10)) 2 >saved.log 2>&1 &
CUDA_VISIBLE_DEVICES=3 python3 labels.py 0 25 >labels.log 2>&1 || true
CUDA_VISIBLE_DEVICES=3 python3 leak.py 0 $((seconds * 5 / 10)) >leak.log 2>&1 &
wait "$recording" || { cat record.log; exit 1; }
pkill -f train.py || true
tail -n 4 ./*.log
