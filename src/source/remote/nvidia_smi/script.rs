//! The script that runs on the remote host: a loop in the system's shell that executes each line of its input until
//! the input ends.
//!
//! | line | answer |
//! |---|---|
//! | `f` | once: facts about the host, and the fields that its `nvidia-smi` supports |
//! | `r 7 index,uuid,… 31 62` | a round of readings, from `b 7` to `. 7`, including these processes |
//! | `d 8 mig` | the usage per process, from `i 8` to `; 8`; with `mig`, also the MIG instances |
//! | `h` | the host's clocks, even while a round is hung |
//!
//! `nvidia-smi pmon` supports at most four GPUs per call, so it is called once per four GPUs.
//!
//! Every reply line starts with a letter that identifies its kind ([`super::lines`]). Rounds run in the background, so
//! that a hung driver blocks nothing else. When the input ends, all remaining child processes are killed.

/// Start of the script's first output line, followed by the protocol version.
pub(in super::super) const GREETING: &str = "gputop-smi protocol=";

/// Paths to search for `nvidia-smi` in addition to PATH: in WSL, and in containers whose runtime provides the program.
const PLACES: &str =
    "nvidia-smi /usr/lib/wsl/lib/nvidia-smi /usr/local/nvidia/bin/nvidia-smi /usr/bin/nvidia-smi";

const SCRIPT: &str = r#"
export LC_ALL=C; exec 2>/dev/null;
x() { sed "s/^/$1 /"; };
echo "gputop-smi protocol=1 version=1";
while read -r o a q k; do case "$o" in
h) read -r u z </proc/uptime; echo "h $u $(date +%s)";;
f) {
 uname -n | x N; uname -r | x K; x B </proc/sys/kernel/random/boot_id; readlink /proc/self/ns/pid | x S;
 getconf CLK_TCK | x T; getconf PAGESIZE | x P; getconf _NPROCESSORS_ONLN | x C; id -u | x U;
 "$s" --help-query-gpu | grep "^[[:punct:]]" | x F;
 v=$("$s" --version | grep "CUDA.*ersion") || v=$("$s" | grep "CUDA.*ersion"); printf "%s\n" "$v" | x V;
 echo .;
} & ;;
r) {
 echo "b $a";
 read -r u z </proc/uptime; echo "u $u $(date +%s)";
 grep -E "^(Mem(Total|Available)|Swap(Total|Free)):" /proc/meminfo | x m;
 read -r c </proc/stat; echo "c $c";
 read -r l </proc/loadavg; echo "l $l";
 g=$("$s" --query-gpu="$q" --format=csv,noheader,nounits 2>&1); e=$?;
 printf "%s\n" "$g" | x g; echo "e $e";
 p=$("$s" --query-compute-apps=gpu_uuid,pid,used_memory,process_name --format=csv,noheader,nounits); e=$?;
 printf "%s\n" "$p" | x a; echo "d $e";
 v=$( { printf "%s\n" "$p" | cut -d, -f2; echo "$k"; } | tr " " "\n" | grep -x "[0-9][0-9]*" | sort -u);
 if [ "$v" ]; then
  cat $(printf "/proc/%s/stat " $v) | x s;
  ps -o pid= -o user:32= -o args= -p "$(echo $v | tr " " ,)" | cut -c1-1000 | x p;
 fi;
 echo ". $a";
} & ;;
d) {
 echo "i $a";
 "$s" --query-gpu=index --format=csv,noheader | paste -d, - - - - | sed "s/,*$//" |
 while read -r n; do "$s" pmon -i $n -c 1 -s um </dev/null 2>&1; done | x t;
 if [ "$q" ]; then
  "$s" -L | x v;
  "$s" | grep -E "^[|]( +[0-9]+){4} +[|]" | x w;
 fi;
 echo "; $a";
} & ;;
esac; done;
kill -9 0
"#;

/// Returns shell code that sets `s` to the path of `nvidia-smi` and fails if it is not found. The code is passed to
/// `sh` in single quotes.
pub(in super::super) fn found() -> String {
    format!("for s in {PLACES}; do s=$(command -v \"$s\" 2>/dev/null) && break; done; [ \"$s\" ]")
}

/// Returns the script to run after [`found`] has succeeded. The script is one line without single quotes, because any
/// login shell must pass it on unchanged: csh accepts no line breaks and interprets `!` in quotes, and fish interprets
/// `\'` and `\\`.
pub(in super::super) fn script() -> String {
    SCRIPT.lines().map(str::trim).collect::<Vec<&str>>().join(" ").trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_login_shell_passes_the_script_on_unchanged() {
        let text = found() + &script();
        for strange in ["'", "!", "\n", "\\\\"] {
            assert!(!text.contains(strange), "{strange:?}");
        }
        assert!(text.contains(GREETING));
    }
}
