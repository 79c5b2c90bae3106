//! Redacts tokens recognized by their issuer's prefix.

use std::ops::Range;

struct Shape {
    prefix: &'static [u8],
    /// A token must contain a run of letters and digits of at least this length after the prefix.
    min_run: usize,
    /// Other characters allowed in the token.
    also: &'static [u8],
}

const fn shape(prefix: &'static str, min_run: usize, also: &'static str) -> Shape {
    Shape { prefix: prefix.as_bytes(), min_run, also: also.as_bytes() }
}

/// Token formats of Hugging Face, OpenAI, Anthropic, Stripe, GitHub, GitLab, AWS, Slack, Google, npm, PyPI, Docker,
/// SendGrid, DigitalOcean, Replicate, NVIDIA, Groq, Weights & Biases, and JSON web tokens.
const SHAPES: &[Shape] = &[
    shape("hf_", 16, ""),
    shape("api_org_", 16, ""),
    shape("sk-", 16, "-_"),
    shape("sk_live_", 16, ""),
    shape("sk_test_", 16, ""),
    shape("rk_live_", 16, ""),
    shape("ghp_", 16, ""),
    shape("gho_", 16, ""),
    shape("ghu_", 16, ""),
    shape("ghs_", 16, ""),
    shape("ghr_", 16, ""),
    shape("github_pat_", 16, "_"),
    shape("glpat-", 16, "-_"),
    shape("AKIA", 16, ""),
    shape("ASIA", 16, ""),
    shape("xoxa-", 10, "-"),
    shape("xoxb-", 10, "-"),
    shape("xoxp-", 10, "-"),
    shape("xoxs-", 10, "-"),
    shape("xapp-", 10, "-"),
    shape("AIza", 16, "-_"),
    shape("ya29.", 16, "-_."),
    shape("npm_", 16, ""),
    shape("pypi-", 16, "-_"),
    shape("dckr_pat_", 16, "-_"),
    shape("SG.", 16, "-_."),
    shape("dop_v1_", 16, ""),
    shape("r8_", 16, ""),
    shape("nvapi-", 16, "-_"),
    shape("gsk_", 16, ""),
    shape("wandb_v1_", 16, "_"),
    shape("eyJ", 16, "-_.="),
];

/// Maximum number of bytes to search after a prefix for a run of letters and digits. Without a limit, hostile text
/// would make the search quadratic.
const MAX_LOOK_AHEAD: usize = 512;

impl Shape {
    fn allows(&self, byte: u8) -> bool {
        byte.is_ascii_alphanumeric() || self.also.contains(&byte)
    }
}

const PRIVATE_KEY: &[u8] = b"PRIVATE KEY-----";

pub fn find(text: &[u8], hidden: &mut Vec<Range<usize>>) {
    let mut at = 0;
    while at < text.len() {
        match token_end(text, at) {
            Some(end) => {
                hidden.push(at..end);
                at = end;
            }
            None => at += 1,
        }
    }
    private_keys(text, hidden);
}

/// Returns the end of the token that begins at `at`, or `None` if no token begins there.
fn token_end(text: &[u8], at: usize) -> Option<usize> {
    let before = at.checked_sub(1).map_or(b' ', |i| text[i]);
    if before.is_ascii_alphanumeric() || before == b'_' {
        return None;
    }
    let rest = &text[at..];
    SHAPES.iter().find_map(|shape| {
        let tail = rest.strip_prefix(shape.prefix)?;
        let length = |of: &[u8]| of.iter().take_while(|b| shape.allows(**b)).count();
        let looked_at = &tail[..tail.len().min(MAX_LOOK_AHEAD)];
        // `sk-learn-pipeline` is a name. A token contains a long run without a separator.
        let has_run = looked_at[..length(looked_at)]
            .split(|b| !b.is_ascii_alphanumeric())
            .any(|run| run.len() >= shape.min_run);
        has_run.then(|| at + shape.prefix.len() + length(tail))
    })
}

/// Finds the bodies of PEM keys. Without an end marker, the body extends to the end of the text. Without a begin
/// marker, it extends backwards over all base64 text.
fn private_keys(text: &[u8], hidden: &mut Vec<Range<usize>>) {
    let mut from = 0;
    while let Some(marker) = position(&text[from..], PRIVATE_KEY).map(|at| from + at) {
        let start = marker + PRIVATE_KEY.len();
        if let Some(end) = end_marker(&text[from..marker]).map(|at| from + at) {
            hidden.push(body_before(text, from, end)..end);
            from = start;
            continue;
        }
        let end = position(&text[start..], b"-----END").map_or(text.len(), |at| start + at);
        hidden.push(start..end);
        // Skip the end marker, which contains `PRIVATE KEY` but does not begin another key.
        from = position(&text[end..], PRIVATE_KEY)
            .map_or(text.len(), |at| end + at + PRIVATE_KEY.len());
    }
}

/// Returns the start of a truncated `-----END RSA ` marker at the end of the text.
fn end_marker(text: &[u8]) -> Option<usize> {
    const MAX_KIND: usize = 40;
    let from = text.len().saturating_sub(MAX_KIND);
    let end = memchr::memmem::rfind(&text[from..], b"-----END")?;
    let begin = memchr::memmem::rfind(&text[from..], b"-----BEGIN");
    (begin < Some(end)).then_some(from + end)
}

/// Returns the first position after `from` such that all bytes from there to `end` can be part of a key.
fn body_before(text: &[u8], from: usize, end: usize) -> usize {
    let may_be_key = |b: &&u8| b.is_ascii_alphanumeric() || b"+/=\\\r\n".contains(b);
    let body = text[from..end].iter().rev().take_while(may_be_key);
    let start = end - body.count();
    let blank = text[start..end].iter().take_while(|b| b"\r\n".contains(b));
    start + blank.count()
}

fn position(text: &[u8], wanted: &[u8]) -> Option<usize> {
    text.windows(wanted.len()).position(|window| window == wanted)
}
