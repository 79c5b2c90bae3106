//! Comparison of two run summaries.

use serde::Serialize;

use super::run_summary::RunSummary;
use super::subject::{Figure, Quantity, Subject};

/// Two run summaries and the differences between their figures.
#[derive(Debug, Serialize)]
pub struct RunComparison {
    pub schema: u32,
    pub a: RunSummary,
    pub b: RunSummary,
    /// GPUs, processes and pools of both runs. GPUs are matched by index, and processes by rank and program.
    pub subjects: Vec<ComparedSubject>,
}

/// A GPU, process or pool that appears in at least one of the two runs.
#[derive(Debug, Serialize)]
pub struct ComparedSubject {
    pub title: String,
    pub figures: Vec<Difference>,
}

/// One figure in both runs, and the difference.
#[derive(Debug, Serialize)]
pub struct Difference {
    pub name: &'static str,
    #[serde(skip)]
    pub title: &'static str,
    pub a: Option<Quantity>,
    pub b: Option<Quantity>,
    /// `b` minus `a`, if both are known.
    pub difference: Option<Quantity>,
}

pub fn compare(a: RunSummary, b: RunSummary) -> RunComparison {
    let mut later = b.subjects();
    let mut subjects = Vec::new();
    for subject in a.subjects() {
        let at = later.iter().position(|other| other.key == subject.key);
        let other = at.map(|at| later.remove(at));
        subjects.push(ComparedSubject::new(Some(subject), other));
    }
    let only_b = later.into_iter();
    subjects.extend(only_b.map(|subject| ComparedSubject::new(None, Some(subject))));
    RunComparison { schema: a.schema, a, b, subjects }
}

impl ComparedSubject {
    fn new(a: Option<Subject>, b: Option<Subject>) -> Self {
        let title = match (&a, &b) {
            (Some(a), Some(b)) if a.title == b.title => a.title.clone(),
            (Some(a), Some(b)) => format!("{} | {}", a.title, b.title),
            (Some(a), None) => format!("{} (only in A)", a.title),
            (None, Some(b)) => format!("{} (only in B)", b.title),
            (None, None) => String::new(),
        };
        let find = |subject: &Option<Subject>, name| {
            let mut figures = subject.iter().flat_map(|subject| &subject.figures);
            figures.find(|figure| figure.name == name)?.value
        };
        // Either subject can supply the figure names, because subjects of the same kind have the same figures.
        let figures = a.as_ref().or(b.as_ref()).map(|subject| &subject.figures);
        let difference = |figure: &Figure| {
            let values = (find(&a, figure.name), find(&b, figure.name));
            Difference {
                name: figure.name,
                title: figure.title,
                a: values.0,
                b: values.1,
                difference: values
                    .0
                    .zip(values.1)
                    .map(|(a, b)| a.with_number(b.number() - a.number())),
            }
        };
        Self {
            title,
            figures: figures
                .into_iter()
                .flatten()
                .map(difference)
                .filter(|difference| difference.a.is_some() || difference.b.is_some())
                .collect(),
        }
    }
}
