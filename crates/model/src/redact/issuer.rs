//! Redacts tokens recognized by their issuer's prefix.

use std::ops::Range;
use std::sync::LazyLock;

use aho_corasick::{AhoCorasick, MatchKind};

use super::notation::{near, trim_end};

/// Token formats as their issuers document them: prefixes, the minimum length of a run of letters and digits after the
/// prefix, and other characters of the token. The order within a row is that of the alphabet.
#[rustfmt::skip]
const FORMATS: &[(&str, usize, &str)] = &[
    // Letters and digits only: Alibaba Cloud, AWS, Clojars, EasyPost, GitHub, Groq, Grafana, Hugging Face, Linear,
    // npm, Prefect, RubyGems, Shopify, Stripe, Volcengine and others.
    ("A3T ABIA ABSK ACCA AKIA AKID AKLT ASIA CLOJARS_ EZAK EZTK GR1348941 LTAI ZXlK api_org_ doo_v1_ dop_v1_ \
      dor_v1_ duffel_live_ duffel_test_ ghp_ gho_ ghr_ ghs_ ghu_ glc_ gsk_ hf_ lin_api_ lin_oauth_ nvapi- npm_ \
      ntn_ phc_ phx_ pnb_ pnu_ r8_ rdme_ rk_live_ rk_test_ rubygems_ sbp_ shippo_live_ shippo_test_ shpat_ shpca_ \
      shppa_ shpss_ rk_prod_ sk_live_ sk_prod_ sk_test_ sm_pat_ sm_sat_ sqa_ sqp_ squ_ tfp_ tgp_v1_ whsec_ zpka_", 16, ""),
    ("HRKU- NRAK- NRII- NRJS- NRRA- PMAK- PMAT- pul- dapi", 20, "-"),
    ("AGE-SECRET-KEY-1 AKCp API- EAA cmVmd fc- fw_ key- secret_", 20, ""),
    ("SK", 32, ""),
    // Airtable, Apify, Contentful, Dropbox, E2B, Honeycomb, Mollie, Netlify, NuGet, Razorpay, Render, RunPod,
    // Scaleway, Twitch
    ("ALTAK CFPAT- SCW apify_api_ e2b_ hcaik_ hcbik_ hcxik_ nfp_ oauth: rnd_ rpa_ rzp_live_ rzp_test_", 14, "-_"),
    ("oy2 pat sl. test_", 30, ".-_"),
    // Braintree, stream keys of Twitch
    ("access_token$production$ access_token$sandbox$ live_", 16, "$_"),
    // Notifications of ServerChan
    ("SCT sctp", 24, ""),
    ("pat. sat.", 20, "-_."),
    ("sk-lf-", 12, "-"),
    ("s. b.", 24, ""),
    // With separators: Anthropic, Atlassian, Cerebras, Cohere, DeepSeek, Docker, GitLab, Google, HashiCorp, LangSmith,
    // NVIDIA, OpenAI, Perplexity, PlanetScale, PyPI, SendGrid, Sentry, Slack, Square, Tailscale, xAI and others.
    ("1//0 AIza AQVN ATATT3 ATBB ATCTT3 ATOA ATTA CCIPAT_ EAAA FLWSECK- FLWSECK_TEST- GOCSPX- PRIVATE-AKV SG. \
      access-production- access-sandbox- bedrock-api-key- bkua_ csk- dckr_oat_ dckr_pat_ dnkey- dp.audit. dp.ct. \
      dp.pt. dp.scim. dp.st. dt0c01. eyJ figd_ figo_ fio-u- fm1a_ fm1r_ fm2_ fo1_ glagent- glcbt- gldt- glffct- \
      glft- glimt- gloas- glpat- glptt- glrt- glsa_ glsoat- hvb. hvr. hvs. ico- jina_ lsv2_pt_ lsv2_sk_ mlsn. \
      napi_ nvapi- ops_ pat-na1- pcsk_ polar_oat_ pplx- pscale_oauth_ pscale_pw_ pscale_tkn_ pypi- re_ s-s4t2ud- \
      sb_secret_ secret-live- sgp_ sha256~ sk- sm_aat_ sntrys_ sntryu_ sq0atp- sq0csp- tk-us- tskey- tvly- \
      vercel_blob_rw_ wandb_v1_ xai- xkeysib- xsmtpsib- y0_ ya29. github_pat_", 16, "-_.="),
    ("xapp- xoxa- xoxb- xoxc- xoxd- xoxe- xoxe. xoxo- xoxp- xoxr- xoxs- xwfp-", 10, "-_.%"),
    // Hashes of passwords.
    ("$1$ $2a$ $2b$ $2y$ $5$ $6$ $7$ $apr1$ $argon2 $pbkdf2 $scrypt$ $y$ {SHA} {SSHA}", 8, "$./=,+_-"),
];

/// Maximum number of bytes to search after a prefix for a run of letters and digits. Without a limit, hostile text
/// would make the search quadratic.
const MAX_LOOK_AHEAD: usize = 512;

struct Prefixes {
    automaton: AhoCorasick,
    /// The row of [`FORMATS`] of each prefix.
    rows: Vec<usize>,
}

static PREFIXES: LazyLock<Prefixes> = LazyLock::new(|| {
    let rows = || {
        let rows = FORMATS.iter().enumerate();
        rows.flat_map(|(n, (prefixes, ..))| prefixes.split(' ').map(move |prefix| (n, prefix)))
    };
    let automaton = AhoCorasick::builder()
        .match_kind(MatchKind::LeftmostLongest)
        .build(rows().map(|(_, prefix)| prefix))
        .expect("valid prefixes");
    Prefixes { automaton, rows: rows().map(|(n, _)| n).collect() }
});

pub fn find(text: &[u8], hidden: &mut Vec<Range<usize>>) {
    let mut done = 0;
    for found in PREFIXES.automaton.find_iter(text) {
        let before = found.start().checked_sub(1).map_or(b' ', |at| text[at]);
        let begins = !before.is_ascii_alphanumeric() && before != b'_';
        if found.start() < done || !begins {
            continue;
        }
        let (_, min_run, also) = FORMATS[PREFIXES.rows[found.pattern().as_usize()]];
        if let Some(length) = token_length(&text[found.end()..], min_run, also.as_bytes()) {
            done = found.end() + length;
            hidden.push(found.start()..done);
        }
    }
}

/// Returns the length of the token after its prefix, or `None` if it is not a token: `sk-learn-pipeline`.
fn token_length(rest: &[u8], min_run: usize, also: &[u8]) -> Option<usize> {
    let length =
        |of: &[u8]| of.iter().take_while(|b| b.is_ascii_alphanumeric() || also.contains(b)).count();
    let seen = near(rest, 0, MAX_LOOK_AHEAD);
    let has_run = seen[..length(seen)]
        .split(|b| !b.is_ascii_alphanumeric())
        .any(|run| run.len() >= min_run && is_mixed(run));
    has_run.then(|| trim_end(rest, 0..length(rest), b".,").end)
}

/// Returns true for letters with digits or of both cases, but not for a long word: `re_parameterization`.
fn is_mixed(run: &[u8]) -> bool {
    let has = |class: fn(&u8) -> bool| run.iter().any(class);
    has(u8::is_ascii_digit) || (has(u8::is_ascii_lowercase) && has(u8::is_ascii_uppercase))
}

/// Returns true if the text begins with an issuer's prefix, whether or not a whole token follows.
pub fn has_prefix(text: &[u8]) -> bool {
    PREFIXES.automaton.find(&text[..text.len().min(16)]).is_some_and(|found| found.start() == 0)
}
