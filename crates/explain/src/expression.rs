//! Translates card patterns to regular expressions. The build script also uses this module, so it must not depend on
//! other modules.

/// Regular expression for `{SIZE}`: a number with its unit.
const SIZE: &str = r"\d[\d,]*(?:\.\d+)? ?(?:[Bb]ytes|[KMGT]i?B|[KMGT]i?b|[KMGT]|B)\b";

/// Regular expression for `{ASSERT}`: the line of a failed device-side assertion, as printed by CUDA on Linux and
/// Windows, by verbose builds and by ROCm (PyTorch's c10/macros/Macros.h). Templated kernels print their whole
/// signature, so everything before `block:` is the kernel.
const ASSERT: &str = concat!(
    r#"(?<kernel_file>(?:[A-Za-z]:)?[^\s:"'`()]+\.\w{1,5}):(?<kernel_line>\d+): "#,
    r"(?:(?:(?<kernel>[^\n]{1,600}?): ?)?block: \[(?<block>\d+, ?\d+, ?\d+)\], ",
    r"thread: \[(?<thread>\d+, ?\d+, ?\d+)\][,:]? ",
    r#"Assertion (?:[`'"](?<assertion>(?s:.){1,400}?)[`'"] failed|failed: [`'](?<assertion_2>[^`'\n]{1,300})[`'])"#,
    r"|(?:(?<kernel_2>[^\n]{1,600}?): )?Device-side assertion [`'](?<assertion_3>[^\n]{1,300}?)[`'] failed)",
);

/// Replaces the names of expressions in a card pattern. The spaces of `{SIZE}` become `space`.
fn with_names(written: &str, space: &str) -> String {
    let size = format!("(?:{})", SIZE.replace(' ', space));
    written.replace("{SIZE}", &size).replace("{ASSERT}", ASSERT)
}

/// Translates a card pattern to a regular expression for text that is not wrapped.
#[allow(dead_code, reason = "used by the build script")]
#[must_use]
pub fn unwrapped(written: &str) -> String {
    with_names(written, " ")
}

/// Translates a card pattern to a regular expression.
#[must_use]
pub fn expanded(written: &str) -> String {
    let written = with_names(written, "\u{1}");
    let mut out = String::with_capacity(written.len() * 2);
    let mut in_class = false;
    let mut chars = written.chars();
    while let Some(c) = chars.next() {
        match c {
            '\\' => {
                out.push(c);
                out.extend(chars.next());
            }
            '[' => {
                in_class = true;
                out.push(c);
            }
            ']' => {
                in_class = false;
                out.push(c);
            }
            ' ' if !in_class => out.push_str(r"\s+"),
            '\u{1}' => out.push(' '),
            c => out.push(c),
        }
    }
    // Do not turn an optional space (` ?`) in a card pattern into a lazy repetition (`\s+?`).
    out.replace(r"\s+?", r"\s*").replace(r"\s+*", r"\s*")
}
