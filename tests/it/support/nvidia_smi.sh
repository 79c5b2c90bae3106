#!/bin/sh
# Answers as a driver's nvidia-smi does, from files beside it: `gpuN`, a line for each field; `apps`; `help`, the fields it
# knows; `usage`, `devices` and `table`, what it prints for people; `version`, where it has one. It hangs while there is a file `hangs`, and fails with the words of a file `failed`.
here=${0%/*}
while [ -e "$here/hangs" ]; do sleep 0.1; done
[ -e "$here/failed" ] && cat "$here/failed" && exit 9
case "$*" in
"") cat "$here/table" ;;
-L) cat "$here/devices" ;;
"pmon -i "*" -c 1 -s um")
    # Of four at most, as the real one.
    awk -v wanted="$3" '
    BEGIN { n = split(wanted, gpu, ","); for (i = 1; i <= n; i++) asked[gpu[i]] = 1 }
    n > 4 { print "at most 4 devices"; exit 1 }
    /^#/ || $1 in asked || $1 !~ /^[0-9]/' "$here/usage"
    ;;
--version)
    [ -e "$here/version" ] && exec cat "$here/version"
    echo "ERROR: Option --version is not recognized. Please run 'nvidia-smi -h'."
    exit 2
    ;;
--help-query-gpu) cat "$here/help" ;;
"--query-compute-apps=gpu_uuid,pid,used_memory,process_name --format=csv,noheader,nounits") cat "$here/apps" ;;
--query-gpu=*)
    awk -v query="${1#*=}" '
    FILENAME ~ /help$/ {
        while (match($0, /"[a-z_.]+"/)) {
            known[substr($0, RSTART + 1, RLENGTH - 2)] = 1
            $0 = substr($0, RSTART + RLENGTH)
        }
        next
    }
    FNR == 1 { gpus++ }
    { at = index($0, "="); value[gpus, substr($0, 1, at - 1)] = substr($0, at + 1) }
    END {
        fields = split(query, field, ",")
        for (i = 1; i <= fields; i++) if (!(field[i] in known)) {
            print "Field \"" field[i] "\" is not a valid field to query.\n"
            exit 2
        }
        for (gpu = 1; gpu <= gpus; gpu++) {
            line = ""
            for (i = 1; i <= fields; i++)
                line = line (i > 1 ? ", " : "") ((gpu, field[i]) in value ? value[gpu, field[i]] : "[N/A]")
            print line
        }
    }' "$here/help" "$here"/gpu*
    ;;
*) exit 1 ;;
esac
