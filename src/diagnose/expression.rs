//! What cards write for regular expressions, and the expression that it stands for. Knows nothing else: the build
//! reads cards with it as well.

/// A figure with its unit, for signatures: `{SIZE}`.
const SIZE: &str = r"\d[\d,]*(?:\.\d+)? ?(?:[Bb]ytes|[KMGT]i?B|[KMGT]i?b|[KMGT]|B)\b";

/// The line of a failed assertion: CUDA's on Linux and Windows, the verbose build's, ROCm's (KNOWLEDGE: `MACRO`,
/// c10/macros/Macros.h). Templated kernels print their whole signature, so the kernel is what stands before `block:`.
const ASSERT: &str = concat!(
    r#"(?<kernel_file>(?:[A-Za-z]:)?[^\s:"'`()]+\.\w{1,5}):(?<kernel_line>\d+): "#,
    r"(?:(?:(?<kernel>[^\n]{1,600}?): ?)?block: \[(?<block>\d+, ?\d+, ?\d+)\], ",
    r"thread: \[(?<thread>\d+, ?\d+, ?\d+)\][,:]? ",
    r#"Assertion (?:[`'"](?<assertion>(?s:.){1,400}?)[`'"] failed|failed: [`'](?<assertion_2>[^`'\n]{1,300})[`'])"#,
    r"|(?:(?<kernel_2>[^\n]{1,600}?): )?Device-side assertion [`'](?<assertion_3>[^\n]{1,300}?)[`'] failed)",
);

/// The expression behind what a card writes.
#[must_use]
pub fn expanded(written: &str) -> String {
    let size = format!("(?:{})", SIZE.replace(' ', "\u{1}"));
    let written = written.replace("{SIZE}", &size).replace("{ASSERT}", ASSERT);
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
    // ` ?` was an optional space and must not become a lazy run.
    out.replace(r"\s+?", r"\s*").replace(r"\s+*", r"\s*")
}
