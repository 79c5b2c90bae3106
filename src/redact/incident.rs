//! The free text of an incident: what a program said, before it is kept.

use super::text;
use crate::model::incident::{Incident, Quote};
use serde_json::Value;

/// Takes the secrets out of everything that a program had a say in. What a card says is ours and stays.
pub fn incident(incident: &mut Incident) {
    quote(&mut incident.quote);
    words(&mut incident.title);
    incident.at.iter_mut().for_each(words);
    incident.why_first.iter_mut().for_each(words);
    for cause in &mut incident.causes {
        cause.r#for.iter_mut().for_each(words);
        cause.against.iter_mut().for_each(words);
    }
    let fields = &mut incident.fields;
    let said = [
        &mut fields.api_call,
        &mut fields.assertion,
        &mut fields.kernel,
        &mut fields.kernel_file,
        &mut fields.source_file,
        &mut fields.python_file,
    ];
    said.into_iter().flatten().for_each(words);
    for value in fields.more.values_mut() {
        if let Value::String(said) = value {
            words(said);
        }
    }
    incident.secondary.iter_mut().for_each(self::incident);
}

fn words(said: &mut String) {
    *said = without_secrets(said);
}

fn without_secrets(said: &str) -> String {
    String::from_utf8_lossy(&text(said.as_bytes())).into_owned()
}

/// Labels stay on their words: those before the first change where they are, those behind the last moved with it.
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
    let behind = old.len() - tail;
    let (length, before) = (new_bytes.len(), old.len());
    quote.labels.retain_mut(|label| {
        if label.start >= behind {
            // Counted from the end they have not moved.
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
    use crate::model::incident::Label;

    #[test]
    fn a_quotation_loses_its_secret_and_keeps_its_labels() {
        let said = "wanted 2.00 GiB with token=hf_0123456789abcdefghij and 1.06 GiB is free";
        let label = |part: &str, says: &str| {
            let start = said.find(part).expect("it is there");
            Label {
                start,
                end: start + part.len(),
                says: says.into(),
            }
        };
        let mut one = Incident {
            title: "login with --api-key 0123456789abcdef0123 failed".into(),
            quote: Quote {
                text: said.into(),
                labels: vec![
                    label("2.00 GiB", "wanted"),
                    label("hf_0123456789", "secret"),
                    label("1.06 GiB", "free"),
                ],
            },
            ..Incident::default()
        };
        one.fields
            .more
            .insert("command".into(), "curl https://ana:pw@host/x".into());
        one.secondary = vec![one.clone()];
        incident(&mut one);
        let shown = serde_json::to_string(&one).expect("plain data");
        for secret in ["hf_0123", "0123456789abcdef", "ana:pw"] {
            assert!(!shown.contains(secret), "{shown}");
        }
        let quote = &one.quote;
        let labelled: Vec<(&str, &str)> = quote
            .labels
            .iter()
            .map(|l| (&quote.text[l.start..l.end], l.says.as_str()))
            .collect();
        assert_eq!(labelled, [("2.00 GiB", "wanted"), ("1.06 GiB", "free")]);
    }
}
