//! Parses text into filter terms, without access to processes.
//!
//! `train user:me -vram<10g "a b"` consists of four words. A word is a field term if it consists of letters, one of `:`
//! `>` `<` `>=` `<=`, and a value, or of a field name, `=` and a value. Every other word is free text, including
//! `--lr=1` and quoted text.

use gputop_model::nearest_name::nearest;
use thiserror::Error;

use super::fields::{Comparator, Compare, FIELDS, FieldDef, Kind, STATES, State, Unit};

/// A filter error. Error messages are shown beside the input, so they are short and have no period.
#[derive(Debug, Clone, Error, PartialEq, Eq)]
pub enum FilterError {
    #[error("unknown field `{word}`; {}", suggestion(.nearest))]
    Name { word: String, nearest: Option<&'static str> },
    #[error("unknown state `{word}`; {}", suggestion(.nearest))]
    State { word: String, nearest: Option<&'static str> },
    #[error("`{name}{operator}` needs a value, such as {example}")]
    Empty { name: &'static str, operator: &'static str, example: &'static str },
    #[error("`{name}` does not accept `{operator}`; write {example}")]
    Operator { name: &'static str, operator: &'static str, example: &'static str },
    #[error("`{word}` is not a valid {what}; write {example}")]
    Value { word: String, what: &'static str, example: &'static str },
    #[error("`!` must be followed by a term")]
    EmptyNegation,
}

impl FilterError {
    /// Returns the typed field name. Until an operator is typed after it, this text counts as free text.
    pub fn name(&self) -> Option<&str> {
        match self {
            Self::Name { word, .. } => Some(word),
            Self::Empty { name, .. } | Self::Operator { name, .. } => Some(name),
            Self::State { .. } | Self::Value { .. } | Self::EmptyNegation => None,
        }
    }
}

fn suggestion(nearest: &Option<&'static str>) -> String {
    match nearest {
        Some(name) => format!("did you mean `{name}`?"),
        None => "press ? for the fields, or quote the term".into(),
    }
}

#[derive(Debug, Clone)]
pub struct Term {
    pub negated: bool,
    pub test: Test,
}

/// Condition of a filter term.
#[derive(Debug, Clone)]
pub enum Test {
    Text(String),
    Field(&'static FieldDef, Compare),
}

/// A character, and whether it is quoted.
type Letter = (char, bool);

/// Operators, longest first, so that `>=` is not parsed as `>`.
const OPERATORS: [&str; 7] = [">=", "<=", "==", ":", "=", ">", "<"];

pub fn parse(text: &str) -> Result<Vec<Term>, FilterError> {
    words(text).iter().map(|word| term(word)).collect()
}

fn words(text: &str) -> Vec<Vec<Letter>> {
    let mut words = vec![Vec::new()];
    let mut quoted = false;
    for letter in text.chars() {
        match letter {
            '"' => quoted = !quoted,
            _ if letter.is_whitespace() && !quoted => words.push(Vec::new()),
            _ => {
                let last = words.len() - 1;
                words[last].push((letter, quoted));
            }
        }
    }
    words.retain(|word| !word.is_empty());
    words
}

fn plain(letters: &[Letter]) -> String {
    letters.iter().map(|(letter, _)| letter).collect()
}

fn term(word: &[Letter]) -> Result<Term, FilterError> {
    let (negated, word) = match word {
        [('!', false)] => return Err(FilterError::EmptyNegation),
        [('!', false), rest @ ..] => (true, rest),
        // Require a word after the minus sign: `-2` and `--lr` are free text.
        [('-', false), rest @ ..] if rest[..].first().is_some_and(starts_word) => (true, rest),
        word => (false, word),
    };
    let test = match split(word) {
        Some((name, operator, value)) => field(&name, operator, value)?,
        None => Test::Text(plain(word)),
    };
    Ok(Term { negated, test })
}

fn starts_word((letter, quoted): &Letter) -> bool {
    *quoted || letter.is_alphabetic()
}

/// Splits a filter word such as `vram>=10g` into name, operator and value. Returns `None` for free text.
fn split(word: &[Letter]) -> Option<(String, &'static str, &[Letter])> {
    let is_name = |(letter, quoted): &Letter| !quoted && letter.is_ascii_alphabetic();
    let end = word.iter().position(|letter| !is_name(letter))?;
    let (name, rest) = word.split_at(end);
    let begins = |operator: &str| {
        let mut letters = rest.iter();
        operator.chars().all(|c| letters.next() == Some(&(c, false)))
    };
    let operator = OPERATORS.into_iter().find(|operator| begins(operator))?;
    let name = plain(name);
    let is_text = name.is_empty() || (operator.starts_with('=') && known(&name).is_none());
    (!is_text).then(|| (name, operator, &rest[operator.len()..]))
}

fn known(name: &str) -> Option<&'static FieldDef> {
    FIELDS.iter().find(|field| field.name == name)
}

fn field(name: &str, operator: &'static str, value: &[Letter]) -> Result<Test, FilterError> {
    let Some(field) = known(name) else {
        return Err(FilterError::Name {
            word: name.to_owned(),
            nearest: nearest(name, FIELDS.iter().map(|field| field.name)),
        });
    };
    let values: Vec<String> = value
        .split(|(letter, quoted)| !quoted && matches!(letter, ',' | '|'))
        .map(plain)
        .filter(|value| !value.is_empty())
        .collect();
    if values.is_empty() {
        return Err(FilterError::Empty { name: field.name, operator, example: field.example });
    }
    Ok(Test::Field(field, compare(field, operator, values)?))
}

fn compare(
    field: &'static FieldDef,
    operator: &'static str,
    values: Vec<String>,
) -> Result<Compare, FilterError> {
    let refused = FilterError::Operator { name: field.name, operator, example: field.example };
    let order = order(operator);
    match (&field.kind, order) {
        (Kind::Text { .. }, None) => Ok(Compare::Texts(values)),
        (Kind::State, None) => states(&values).map(Compare::States),
        (Kind::Number { unit, .. }, Some(order)) => {
            let number = number(&values.join(","), *unit, field)?;
            Ok(Compare::Bound(order, number))
        }
        // Allow equality only for counts, because other numbers rarely equal a typed number exactly.
        (Kind::Number { unit, .. }, None) if *unit == Unit::Count => {
            let number = |value: &String| number(value, *unit, field);
            Ok(Compare::Numbers(values.iter().map(number).collect::<Result<_, _>>()?))
        }
        _ => Err(refused),
    }
}

fn order(operator: &str) -> Option<Comparator> {
    Some(match operator {
        ">" => Comparator::Above,
        "<" => Comparator::Below,
        ">=" => Comparator::AtLeast,
        "<=" => Comparator::AtMost,
        _ => return None,
    })
}

fn states(values: &[String]) -> Result<Vec<State>, FilterError> {
    let state = |word: &String| {
        let found = STATES.iter().find(|def| def.name == word);
        found.map(|def| def.state).ok_or_else(|| FilterError::State {
            word: word.clone(),
            nearest: nearest(word, STATES.iter().map(|def| def.name)),
        })
    };
    values.iter().map(state).collect()
}

fn number(text: &str, unit: Unit, field: &'static FieldDef) -> Result<f64, FilterError> {
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (digits, suffix) = text.split_at(digits);
    let scale = unit.scale(suffix);
    let value = digits.parse::<f64>().ok().filter(|v| v.is_finite());
    match (value, scale) {
        (Some(value), Some(scale)) => Ok(value * scale),
        _ => Err(FilterError::Value {
            word: text.to_owned(),
            what: unit.description(),
            example: field.example,
        }),
    }
}

#[cfg(test)]
mod tests;
