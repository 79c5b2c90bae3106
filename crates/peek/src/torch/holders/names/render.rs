//! Renders paths of references as tensor names: `model.layers.3.weight`, `opt.state[model.head.weight]['exp_avg']`.

use std::rc::Rc;

use gputop_model::text::visible;

use super::{MAX_NAME, NamedPath, Names, ReferenceStep};
use crate::cpython::objects::Kind;

impl Names<'_> {
    /// Returns the path to a Python tensor, with its name.
    pub fn path_of(&self, object: u64) -> Option<NamedPath> {
        let &index = self.graph.index.get(&object)?;
        let node = self.graph.nodes.get(index as usize)?;
        let (name, path) = self.render(node.parent, node.step, 0);
        let aliases = self.graph.aliases.iter().filter(|(tensor, ..)| *tensor == index);
        Some(NamedPath {
            name,
            class: node.class,
            cost: u32::from(node.cost),
            path,
            aliases: aliases.map(|&(_, parent, step)| self.render(parent, step, 0).0).collect(),
        })
    }

    /// Renders the path that leads to the node `parent` and then takes `step`. Returns the path's name and its steps.
    fn render(&self, parent: u32, step: ReferenceStep, nesting: usize) -> (String, Vec<String>) {
        let mut steps = vec![step];
        let mut at = parent;
        while let Some(node) = self.graph.nodes.get(at as usize) {
            let budget = self.python.reader.budget;
            let max = budget.options.maximums.depth;
            if steps.len() > max {
                budget.limits.add_end(format!("Names show at most {max} references."));
                break;
            }
            steps.push(node.step);
            at = node.parent;
        }
        let mut name = String::new();
        let mut path = Vec::new();
        for &step in steps.iter().rev() {
            let text = self.step_text(step, nesting);
            let is_shown = match step {
                ReferenceStep::Root(root) => {
                    self.roots.get(root as usize).is_some_and(|root| root.is_shown)
                }
                _ => true,
            };
            if is_shown {
                name.push_str(&text);
            }
            if !text.is_empty() {
                path.push(text);
            }
        }
        let name = name.strip_prefix('.').unwrap_or(&name);
        (visible(name.as_bytes(), MAX_NAME), path)
    }

    fn step_text(&self, step: ReferenceStep, nesting: usize) -> String {
        let python = self.python;
        let named =
            |name: Option<Rc<str>>| name.map_or_else(|| ".?".to_owned(), |name| format!(".{name}"));
        match step {
            ReferenceStep::Root(root) => {
                let root = self.roots.get(root as usize);
                root.map_or_else(String::new, |root| visible(root.text.as_bytes(), MAX_NAME))
            }
            ReferenceStep::Attribute(name) | ReferenceStep::Local(name) => named(python.text(name)),
            ReferenceStep::Slot(name) => match python.reader.text(name, MAX_NAME) {
                // Omit `_local_tensor`, so that the local part of a distributed tensor has the name of the distributed
                // tensor.
                Some(name) if name == "_local_tensor" => String::new(),
                name => named(name.map(Rc::from)),
            },
            ReferenceStep::Key(key) => match python.type_of(key).map(|class| class.kind) {
                Some(Kind::Text) => {
                    let text = python.text(key);
                    format!("['{}']", text.as_deref().unwrap_or("?"))
                }
                Some(Kind::Int) => match python.int(key) {
                    Some(number) => format!("[{number}]"),
                    None => "[<int>]".to_owned(),
                },
                _ => {
                    let class = python.type_of(key);
                    format!("[<{}>]", class.as_ref().map_or("?", |class| &class.name))
                }
            },
            ReferenceStep::Index(index) => format!("[{index}]"),
            ReferenceStep::StateOf(tensor) => {
                let node = self
                    .graph
                    .index
                    .get(&tensor)
                    .and_then(|&index| self.graph.nodes.get(index as usize));
                match node {
                    // Limit nesting: the name of a key must not contain the name of another key.
                    Some(node) if nesting == 0 => {
                        format!("[{}]", self.render(node.parent, node.step, 1).0)
                    }
                    _ => "[<tensor>]".to_owned(),
                }
            }
            ReferenceStep::Field(text) => text.to_owned(),
            ReferenceStep::Hidden => String::new(),
        }
    }
}
