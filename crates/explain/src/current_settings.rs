//! Finds options and variables that the failed program already uses, so that no fix recommends them again.

use super::signature::Pattern;

/// Text before an option in a line that starts a program, or that shows its arguments.
const COMMANDS: &str = r"(?:\$ |\bcommand:|\barguments:|COMMANDLINE_ARGS|\bdocker run\b|\bpodman run\b|\bpython\S* \S|\b(?:vllm|trtllm-)\s?serve\b|\bllama-\w+ -|\bkoboldcpp\S* |\btext-generation-launcher --)";

/// Returns true if the log shows all options and variables of `change`. Advice in the log, such as `try setting
/// NAME=VALUE`, does not count.
#[must_use]
pub(super) fn are_shown(change: &str, texts: &[&str]) -> bool {
    let settings = settings(change);
    let is_shown = |setting: &CurrentSetting<'_>| texts.iter().any(|text| setting.is_in(text));
    !settings.is_empty() && settings.iter().all(is_shown)
}

enum CurrentSetting<'a> {
    Variable(&'a str, &'a str),
    Option(&'a str, Option<&'a str>),
}

/// Returns the variables before a command and its options.
fn settings(change: &str) -> Vec<CurrentSetting<'_>> {
    let mut settings = Vec::new();
    let mut words = change.split_whitespace().peekable();
    while let Some(word) = words.next() {
        if let Some(option) = word.strip_prefix("--").filter(|option| !option.is_empty()) {
            let value = option.split_once('=');
            let next = words.next_if(|next| value.is_none() && !next.starts_with('-'));
            let (name, value) = value.map_or((option, next), |(name, value)| (name, Some(value)));
            settings.push(CurrentSetting::Option(name, value));
        } else if let Some((name, value)) = word.split_once('=').filter(|(name, _)| is_name(name)) {
            settings.push(CurrentSetting::Variable(name, value));
        }
    }
    settings
}

fn is_name(name: &str) -> bool {
    let is_part = |b: u8| b.is_ascii_uppercase() || b.is_ascii_digit() || b == b'_';
    !name.is_empty() && name.bytes().all(is_part)
}

impl CurrentSetting<'_> {
    fn is_in(&self, text: &str) -> bool {
        match *self {
            Self::Variable(name, value) => {
                // PyTorch reads these settings from two variables.
                let (common, alias) = match name {
                    "PYTORCH_CUDA_ALLOC_CONF" => {
                        ("_ALLOC_CONF", "PYTORCH_(?:CUDA_|HIP_)?ALLOC_CONF")
                    }
                    name => (name, name),
                };
                if !text.contains(common) {
                    return false;
                }
                let value = regex::escape(value);
                let before =
                    r#"(?:^|export |-e |--env[= ]|\benv |\$ |\b[A-Z_]{2,40}=\S{0,80} |["'\[{(:])"#;
                let quote = r#"["']?"#;
                // Code assigns `environ["NAME"] = "VALUE"`. A list can contain other settings before and after the value.
                let others = r#"(?:[^\s"',]{1,80},){0,8}"#;
                let assigned = format!(
                    "{before}{alias}{quote}\\]? ?[=:] ?{quote}{others}{value}{quote}(?:[\\s,)]|$)"
                );
                Pattern::new(&assigned).is_in(text)
            }
            Self::Option(name, value) => {
                let variable = name.replace('-', "_");
                if !text.contains(name) && !text.contains(&variable) {
                    return false;
                }
                let typed = value.map(|value| format!("[ =]{}", regex::escape(value)));
                let typed = typed.unwrap_or_default();
                let option = regex::escape(name);
                // A backslash continues a command on the next line.
                let typed = format!(r"{COMMANDS}(?:[^\n\\]|\\\n?)*?\s--{option}{typed}(?:\s|$)");
                let variable = regex::escape(&variable);
                let value = value.map_or_else(|| "[Tt]rue".to_owned(), regex::escape);
                // Between backticks, a message recommends the option.
                let printed = format!(r#"(?:^|[^\w`-]){variable}["']?[=:] ?["']?{value}\b"#);
                Pattern::new(&typed).is_in(text) || Pattern::new(&printed).is_in(text)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_options_in_commands_and_in_printed_arguments() {
        for (change, log) in [
            ("python main.py --lowvram", r"C:\ui>.\python.exe -s main.py --lowvram --listen"),
            ("vllm serve MODEL --enforce-eager", "non-default args: {'enforce_eager': True}"),
            (
                "vllm serve MODEL --dtype half",
                "$ vllm serve org/model \\\n  --dtype half \\\n  --port 1",
            ),
            ("A_B=1 vllm serve MODEL", "docker run -e A_B=1 image"),
            (
                "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True python x.py",
                r#"os.environ["PYTORCH_ALLOC_CONF"] = "max_split_size_mb:64,expandable_segments:True""#,
            ),
        ] {
            assert!(are_shown(change, &[log]), "{change}: {log}");
        }
    }

    #[test]
    fn advice_and_other_values_are_not_settings() {
        for (change, log) in [
            ("vllm serve MODEL --dtype half", "set the flag in CLI, for example: --dtype half."),
            ("vllm serve MODEL --dtype half", "$ vllm serve org/model --dtype bfloat16"),
            (
                "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True python x.py",
                "If reserved but unallocated memory is large try setting PYTORCH_ALLOC_CONF=expandable_segments:True to avoid",
            ),
            ("A_B=1 python x.py", "If it is large try setting A_B=1 to avoid it"),
            ("python main.py", "$ python main.py"),
            ("vllm serve MODEL --enforce-eager", "Please pass the argument `enforce_eager=True`."),
        ] {
            assert!(!are_shown(change, &[log]), "{change}: {log}");
        }
    }
}
