//! Redacts an incident's program-supplied text before it is stored or printed.

use super::free_text::text;
use crate::incident::Fields;
use crate::{Incident, Quote};
use serde_json::Value;

/// Redacts all text that a program can influence. Text from error cards is left unchanged.
pub fn incident(incident: &mut Incident) {
    // Destructure all fields, so that a new field causes a compile error until it is handled here.
    let Incident {
        title,
        log,
        fields: found,
        causes,
        fixes,
        quote: excerpt,
        at,
        why_first,
        secondary,
        id: _,
        family: _,
        severity: _,
        confidence: _,
        count: _,
        uid: _,
        time: _,
        host: _,
        detected_by: _,
        not_helpful: _,
        references: _,
        headline: _,
        needs: _,
    } = incident;
    quote(excerpt);
    words(title);
    at.iter_mut().chain(why_first).for_each(words);
    log.iter_mut().for_each(|log| words(&mut log.file));
    for cause in causes {
        cause.r#for.iter_mut().for_each(words);
        cause.against.iter_mut().for_each(words);
    }
    for fix in fixes {
        words(&mut fix.title);
        words(&mut fix.change);
        fix.effect.iter_mut().for_each(words);
    }
    fields(found);
    secondary.iter_mut().for_each(self::incident);
}

fn fields(found: &mut Fields) {
    let texts = [
        &mut found.api_call,
        &mut found.assertion,
        &mut found.cuda_error,
        &mut found.kernel,
        &mut found.kernel_file,
        &mut found.program,
        &mut found.python_file,
        &mut found.source_file,
        &mut found.status,
    ];
    texts.into_iter().flatten().for_each(words);
    found.more.values_mut().for_each(value);
}

fn value(found: &mut Value) {
    match found {
        Value::String(text) => words(text),
        Value::Array(all) => all.iter_mut().for_each(value),
        Value::Object(all) => all.values_mut().for_each(value),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

fn words(text: &mut String) {
    *text = without_secrets(text);
}

fn without_secrets(written: &str) -> String {
    String::from_utf8_lossy(&text(written.as_bytes())).into_owned()
}

/// Redacts a quote and adjusts its label positions. Labels after the last change move with their text. Labels that
/// overlap changed text are removed.
fn quote(quote: &mut Quote) {
    let new = without_secrets(&quote.text);
    if new == quote.text {
        return;
    }
    let (old, new_bytes) = (quote.text.as_bytes(), new.as_bytes());
    let same =
        |pairs: &mut dyn Iterator<Item = (&u8, &u8)>| pairs.take_while(|(a, b)| a == b).count();
    let head = same(&mut old.iter().zip(new_bytes));
    let room = old.len().min(new_bytes.len()) - head;
    let tail = same(&mut old.iter().rev().zip(new_bytes.iter().rev())).min(room);
    let tail_start = old.len() - tail;
    let (length, before) = (new_bytes.len(), old.len());
    quote.labels.retain_mut(|label| {
        if label.start >= tail_start {
            // Labels after the changed text keep their distance from the end.
            label.start = length - (before - label.start.min(before)).min(length);
            label.end = length - (before - label.end.min(before)).min(length);
            return true;
        }
        label.end <= head
    });
    quote.text = new;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::incident::{Fix, Label, LogLocation};

    #[test]
    fn redacted_quote_keeps_its_other_labels() {
        let text = "wanted 2.00 GiB with token=hf_0123456789abcdefghij and 1.06 GiB is free";
        let label = |part: &str, says: &str| {
            let start = text.find(part).expect("part of the text");
            Label { start, end: start + part.len(), says: says.into() }
        };
        let mut one = Incident {
            title: "login with --api-key 0123456789abcdef0123 failed".into(),
            quote: Quote {
                text: text.into(),
                labels: vec![
                    label("2.00 GiB", "wanted"),
                    label("hf_0123456789", "secret"),
                    label("1.06 GiB", "free"),
                ],
            },
            ..Incident::default()
        };
        one.fields.more.insert("command".into(), "curl https://ana:pw@host/x".into());
        one.fields.more.insert("all".into(), serde_json::json!([{"b": "token=quokka1"}]));
        one.log = Some(LogLocation {
            file: "runs/token=quokka2/train.log".into(),
            ..LogLocation::default()
        });
        one.fixes =
            vec![Fix { change: "A=1 python train.py --token quokka3".into(), ..Fix::default() }];
        one.secondary = vec![one.clone()];
        incident(&mut one);
        let shown = serde_json::to_string(&one).expect("plain data");
        for secret in ["hf_0123", "0123456789abcdef", "ana:pw", "quokka"] {
            assert!(!shown.contains(secret), "{shown}");
        }
        let quote = &one.quote;
        let labelled: Vec<(&str, &str)> =
            quote.labels.iter().map(|l| (&quote.text[l.start..l.end], l.says.as_str())).collect();
        assert_eq!(labelled, [("2.00 GiB", "wanted"), ("1.06 GiB", "free")]);
    }
}
