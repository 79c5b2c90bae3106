//! Adds the rules of `assets/shared-rules.toml` to a card: the signatures of its `[error]`, and the extracts named in
//! its `extract_sets`. The build script also uses this module, so it must not depend on other modules.

use toml::{Table, Value};

const RULES: &str = include_str!("../assets/shared-rules.toml");
/// Name of the extract set added to every card with `[error]`.
const ERROR_EXTRACTS: &str = "cuda-error";

/// Replaces `error` and `extract_sets` in a card's TOML with the corresponding signatures and extraction rules.
pub fn expand(card: &mut Table) -> Result<(), String> {
    let rules: Table = RULES.parse().map_err(|e| format!("shared-rules.toml: {e}"))?;
    let mut sets = list(card.remove("extract_sets"));
    if let Some(error) = card.remove("error") {
        let Value::Table(error) = error else {
            return Err("`error` is not a table".to_owned());
        };
        let mut signatures = error_signatures(&error, &rules)?;
        signatures.extend(list(card.remove("signature")));
        card.insert("signature".to_owned(), Value::Array(signatures));
        sets.push(ERROR_EXTRACTS.into());
    }
    for set in sets {
        let name = set.as_str().unwrap_or_default();
        let shared = rules.get("extract").and_then(|sets| sets.get(name)).cloned();
        let shared = shared.ok_or_else(|| format!("unknown extract set: {set}"))?;
        let extracts = card.entry("extract").or_insert_with(|| Value::Array(Vec::new()));
        if let Some(extracts) = extracts.as_array_mut() {
            extracts.extend(list(Some(shared)));
        }
    }
    Ok(())
}

/// Builds the signatures for an `[error]` table from its keys `words`, `names` and `codes`.
fn error_signatures(error: &Table, rules: &Table) -> Result<Vec<Value>, String> {
    const PARTS: [&str; 3] = ["words", "names", "codes"];
    let known = |key: &str| PARTS.contains(&key) || ["unless", "generic"].contains(&key);
    if let Some(key) = error.keys().find(|key| !known(key)) {
        return Err(format!("unknown key in `error`: {key}"));
    }
    let is_generic = error.get("generic").and_then(Value::as_bool) == Some(true);
    let shared = |key: &str| list(rules.get("error").and_then(|error| error.get(key)).cloned());
    let mut unless = shared("unless");
    unless.extend(list(error.get("unless").cloned()));
    let words = if is_generic { "generic" } else { "distinctive" };
    let mut signatures = Vec::new();
    for template in shared(words).into_iter().chain(shared("always")) {
        let Value::Table(mut signature) = template else {
            continue;
        };
        let template = signature.get("match").and_then(Value::as_str);
        let mut expression = template.unwrap_or_default().to_owned();
        for part in PARTS {
            if let Some(text) = error.get(part).and_then(Value::as_str) {
                expression = expression.replacen(&format!("{{{part}}}"), text, 1);
                // Rename repeated groups, because a group name can occur only once in an expression.
                let again = numbered_groups(text);
                expression = expression.replace(&format!("{{{part}}}"), &again);
            }
        }
        if PARTS.iter().any(|part| expression.contains(&format!("{{{part}}}"))) {
            continue;
        }
        signature.insert("match".to_owned(), expression.into());
        signature.insert("unless".to_owned(), unless.clone().into());
        signatures.push(signature.into());
    }
    Ok(signatures)
}

/// Returns `expression` with `_2` appended to its group names.
fn numbered_groups(expression: &str) -> String {
    let mut parts = expression.split("(?<");
    let mut out = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        out.push_str("(?<");
        out.push_str(&part.replacen('>', "_2>", 1));
    }
    out
}

fn list(value: Option<Value>) -> Vec<Value> {
    match value {
        Some(Value::Array(list)) => list,
        _ => Vec::new(),
    }
}
