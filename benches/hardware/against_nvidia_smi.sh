#!/usr/bin/env bash
# Records a training run with gputop while nvidia-smi is asked twice a second, then compares the two.
# usage: against_nvidia_smi.sh GPUTOP [FOLDER]
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
gputop=$(realpath "$1")
out=${2:-$(mktemp -d)}
gpus=$(nvidia-smi -L | wc -l)
start=$(date +%s)

ask_nvidia_smi() {
  while [ "$(date +%s)" -lt "$1" ]; do
    local before after cards processes
    before=$(date +%s%3N)
    cards=$(nvidia-smi --query-gpu=index,uuid,memory.used,memory.free,memory.reserved --format=csv,noheader,nounits)
    processes=$(nvidia-smi --query-compute-apps=gpu_uuid,pid,used_memory --format=csv,noheader,nounits)
    after=$(date +%s%3N)
    echo "T $before $after"
    sed 's/^/G /' <<<"$cards"
    sed 's/^/P /' <<<"$processes"
    sleep 0.4
  done
}

"$gputop" record -o "$out/recording.gpt.zst" 2>"$out/record.err" &
recorder=$!
ask_nvidia_smi $((start + 215)) >"$out/nvidia-smi.txt" &
asker=$!
sleep 6
UNTIL=$((start + 200)) OMP_NUM_THREADS=2 torchrun --nproc-per-node "$gpus" "$here/train.py" >"$out/train.log" 2>&1 &
training=$!
sleep 50
other=$((gpus > 1))
python3 "$here/notebook.py" "$other" 6 >>"$out/notebook.log" 2>&1 &
sleep 20
python3 "$here/notebook.py" 0 2 >>"$out/notebook.log" 2>&1 &
sleep 45
python3 "$here/notebook.py" "$other" 9 >>"$out/notebook.log" 2>&1 &
killed=$!
sleep 22
kill -9 "$killed"
wait "$training"
wait "$asker"
kill -INT "$recorder"
wait "$recorder"
python3 "$here/compare.py" "$out/recording.gpt.zst" "$out/nvidia-smi.txt"
