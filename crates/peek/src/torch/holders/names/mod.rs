//! Names tensors by the cheapest path of references from a root: a module in `sys.modules`, or a local variable of a
//! running function.
//!
//! The search uses Dijkstra's algorithm with small costs, so `model.layers.3.weight` wins over
//! `opt.param_groups[0]['params'][17]`. The search stops when every wanted tensor has a name.
//!
//! ```text
//! __main__ ─4─► .model ─► .layers ─► .3 ─► .weight        cost 4 + 2 + 1 + 1 + 1
//!    └──────► .trainer ─► .history ─► [12]                 cost 4 + 2 + 4 + 6
//! ```

mod references;
mod render;

use gputop_model::holders::HolderClass;

use self::references::ParentObject;
use super::tensors::{Tensor, Tensors};
use super::wanted::WantedTensors;
use crate::cpython::interpreter::Interpreter;
use crate::cpython::objects::{Kind, Python};
use crate::cpython::reader::AddressMap;

/// Number of distinct path costs. More expensive paths get the highest cost.
const COSTS: usize = 600;
/// Approximate memory of one node in bytes, including its entries in the index and the queue.
const NODE_BYTES: usize = 96;
/// Minimum number of objects to visit between two checks for freed tensors: a fixed number, and a number per wanted
/// tensor.
const MIN_VISITS_PER_CHECK: usize = 16_384;
const MIN_VISITS_PER_TENSOR: usize = 32;
/// Maximum number of objects to visit in search of the last few bytes without a name.
const MAX_LAST_VISITS: usize = 50_000;
const MAX_NAME: usize = 240;
/// Number of items above which a container is searched after all cheaper paths, because most large containers contain
/// data rather than tensors.
const MANY_ITEMS: u64 = 4_096;
const MANY_ITEMS_COST: u16 = 40;
/// Maximum size of an object of unknown type whose words are followed as pointers, in bytes.
const MAX_OPAQUE_BYTES: u64 = 512;
/// Maximum number of modules and running functions. Large programs have a few thousand.
const MAX_ROOTS: usize = 1 << 16;
/// Maximum number of attributes of one object that are searched, because they are collected first.
const MAX_ATTRIBUTES: usize = 1 << 16;
/// Maximum number of additional tensor names, such as those of tied weights.
const MAX_ALIASES: usize = 4_096;

const MAIN_COST: u16 = 4;
const FRAME_COST: u16 = 6;
/// Cost added to a function's variables for each function that called it, directly or indirectly. High for the
/// outermost calls, because variables of inner functions change with the running function: during an optimizer's step,
/// `self` is the optimizer. Low for further calls, because a framework calls the program from deep in the stack.
const OUTER_CALL_COST: u16 = 4;
const INNER_CALL_COST: u16 = 1;
const OUTER_CALLS: u16 = 5;
const MODULE_COST: u16 = 30;
const LIBRARY_COST: u16 = 90;
/// Modules that rarely refer to the program's tensors.
const LIBRARIES: &[&str] = &["torch", "jax", "jaxlib", "cupy", "numpy", "sympy", "triton"];

/// Reference from one Python object to another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ReferenceStep {
    /// Index of a root's name.
    Root(u32),
    /// Address of the `str` with an attribute's name.
    Attribute(u64),
    /// Address of the C string with a slot's name.
    Slot(u64),
    /// Address of a dictionary key.
    Key(u64),
    Index(u64),
    /// Address of a local variable's name.
    Local(u64),
    /// An optimizer's state for one tensor. The key is the tensor's address.
    StateOf(u64),
    Field(&'static str),
    /// Reference that is not shown in the name, such as the content of a closure's cell.
    Hidden,
}

const NO_PARENT: u32 = u32::MAX;

#[derive(Debug, Clone, Copy)]
struct Node {
    object: u64,
    parent: u32,
    cost: u16,
    class: HolderClass,
    step: ReferenceStep,
    is_done: bool,
}

/// Reference from the node that is being expanded.
#[derive(Debug, Clone, Copy)]
struct Edge {
    cost: u16,
    class: HolderClass,
    step: ReferenceStep,
}

#[derive(Debug, Clone, PartialEq, Default)]
pub struct NamedPath {
    pub name: String,
    pub class: HolderClass,
    pub cost: u32,
    pub path: Vec<String>,
    pub aliases: Vec<String>,
}

impl NamedPath {
    /// Returns the approximate memory of the name in bytes.
    pub fn memory(&self) -> usize {
        let strings = std::iter::once(&self.name).chain(&self.path).chain(&self.aliases);
        strings.map(|text| size_of::<String>() + text.len()).sum()
    }
}

/// Objects reached so far, and a queue of objects to expand.
#[derive(Debug)]
struct Graph {
    nodes: Vec<Node>,
    index: AddressMap<u32>,
    queue: Vec<Vec<u32>>,
    max_nodes: usize,
    is_full: bool,
    /// Additional names of tensors. Each entry has the index of the tensor's node, the index of the node that refers to
    /// the tensor, and the reference, such as an attribute.
    aliases: Vec<(u32, u32, ReferenceStep)>,
}

impl Graph {
    fn push(&mut self, object: u64, parent: u32, edge: Edge) {
        let cost = edge.cost.min(COSTS as u16 - 1);
        let node =
            Node { object, parent, cost, class: edge.class, step: edge.step, is_done: false };
        let index = match self.index.get(&object) {
            Some(&index) => {
                let Some(old) = self.nodes.get_mut(index as usize) else { return };
                if old.cost <= cost {
                    let is_parameter =
                        |class| matches!(class, HolderClass::Parameter | HolderClass::Buffer);
                    let is_second =
                        is_parameter(edge.class) && is_parameter(old.class) && old.parent != parent;
                    if is_second && self.aliases.len() < MAX_ALIASES {
                        self.aliases.push((index, parent, edge.step));
                    }
                    return;
                }
                *old = node;
                index
            }
            None if self.nodes.len() >= self.max_nodes => {
                self.is_full = true;
                return;
            }
            None => {
                let index = u32::try_from(self.nodes.len()).unwrap_or(NO_PARENT);
                self.nodes.push(node);
                self.index.insert(object, index);
                index
            }
        };
        if let Some(bucket) = self.queue.get_mut(usize::from(cost)) {
            bucket.push(index);
        }
    }
}

#[derive(Debug)]
pub struct Names<'a> {
    python: &'a Python<'a>,
    tensors: &'a Tensors<'a>,
    graph: Graph,
    roots: Vec<Root>,
}

/// Start of a path: a module or a function.
#[derive(Debug)]
struct Root {
    text: String,
    /// True if names start with the root's name. The root's name is omitted for the program's own variables.
    is_shown: bool,
}

impl<'a> Names<'a> {
    pub fn new(python: &'a Python<'a>, tensors: &'a Tensors<'a>, max_bytes: usize) -> Self {
        Self {
            python,
            tensors,
            graph: Graph {
                nodes: Vec::new(),
                index: AddressMap::default(),
                queue: vec![Vec::new(); COSTS],
                max_nodes: max_bytes / NODE_BYTES,
                is_full: false,
                aliases: Vec::new(),
            },
            roots: Vec::new(),
        }
    }

    /// Searches until `wanted` is empty, or until 99 % of its bytes have a name and a short search has not found the
    /// remaining names. Returns the name of the limit that ended the search, such as `time`.
    pub fn search(
        &mut self,
        interpreter: &Interpreter,
        wanted: &mut WantedTensors,
        is_alive: impl Fn(&Tensor) -> bool,
        percent: u32,
    ) -> Option<&'static str> {
        let budget = self.python.reader.budget;
        self.add_roots(interpreter);
        let (mut visits, mut last_visits, mut next_check) = (0_usize, 0, MIN_VISITS_PER_CHECK);
        for cost in 0..COSTS {
            let mut next = 0;
            // Check the length each time, because expanding a node may add nodes of the same cost.
            while let Some(&index) = self.graph.queue.get(cost).and_then(|bucket| bucket.get(next))
            {
                next += 1;
                visits += 1;
                if visits.is_multiple_of(256) && budget.is_beyond(percent) {
                    return Some("time");
                }
                self.visit(index, cost, wanted);
                if visits >= next_check {
                    wanted.remove_freed(&is_alive);
                    let interval = wanted.len().saturating_mul(MIN_VISITS_PER_TENSOR);
                    next_check = visits + interval.max(MIN_VISITS_PER_CHECK);
                }
                last_visits += usize::from(wanted.has_enough_names());
                if wanted.is_empty() || last_visits > MAX_LAST_VISITS {
                    return None;
                }
            }
            if let Some(bucket) = self.graph.queue.get_mut(cost) {
                *bucket = Vec::new();
            }
        }
        if self.graph.is_full {
            Some("memory")
        } else {
            budget.is_beyond(percent).then_some("time")
        }
    }

    fn visit(&mut self, index: u32, cost: usize, wanted: &mut WantedTensors) {
        let Some(node) = self.graph.nodes.get(index as usize).copied() else { return };
        let is_deferred = usize::from(node.cost) < cost;
        if node.is_done || usize::from(node.cost) > cost {
            return;
        }
        wanted.set_named(node.object);
        let Some(object_type) = self.python.type_of(node.object) else { return };
        if !is_deferred && self.has_many_items(node.object, object_type.kind) {
            let later = (cost + usize::from(MANY_ITEMS_COST)).min(COSTS - 1);
            if later > cost {
                self.graph.queue[later].push(index);
                return;
            }
        }
        if let Some(node) = self.graph.nodes.get_mut(index as usize) {
            node.is_done = true;
        }
        // Attributes of a tensor inherit the tensor's class. Everything below an optimizer's state inherits the class
        // of that state.
        let class = match node.class {
            class if object_type.kind == Kind::Tensor => class,
            HolderClass::OptimizerState => HolderClass::OptimizerState,
            _ => HolderClass::Variable,
        };
        let parent = ParentObject { index, object: node.object, cost: node.cost, class };
        self.expand(&parent, &object_type);
    }

    fn has_many_items(&self, object: u64, kind: Kind) -> bool {
        let len = match kind {
            Kind::Dict => self.python.dict_len(object),
            Kind::List | Kind::Tuple => self.python.len(object).unwrap_or(0),
            _ => 0,
        };
        len > MANY_ITEMS
    }

    fn add_roots(&mut self, interpreter: &Interpreter) {
        let (python, layout) = (self.python, self.python.layout);
        let max = python.reader.budget.options.maximums.interpreters;
        let (interpreters, are_more) = python.interpreters(interpreter.head, max);
        if are_more {
            let sentence = format!("Only {max} Python interpreters were searched.");
            python.reader.budget.limits.add_end(sentence);
        }
        for state in interpreters {
            let max = python.reader.budget.options.maximums.threads;
            let (threads, are_more) = python.threads(state, max);
            if are_more {
                let sentence = format!("Only {max} threads were searched for local variables.");
                python.reader.budget.limits.add_end(sentence);
            }
            // Reverse the list, because the main thread is last.
            for (number, thread) in threads.into_iter().rev().enumerate() {
                self.add_frames(thread, number);
            }
            if let Some(modules) = python.reader.pointer(state.wrapping_add(layout.modules)) {
                self.add_modules(modules);
            }
        }
    }

    /// Returns true if there are already `max` roots.
    fn has_roots(&self, max: usize) -> bool {
        let is_full = self.roots.len() >= max;
        if is_full {
            let sentence = format!("Only {max} modules and functions were searched.");
            self.python.reader.budget.limits.add_end(sentence);
        }
        is_full
    }

    fn add_root(&mut self, text: String, is_shown: bool) -> ReferenceStep {
        self.roots.push(Root { text, is_shown });
        ReferenceStep::Root(u32::try_from(self.roots.len() - 1).unwrap_or(u32::MAX))
    }

    fn add_modules(&mut self, modules: u64) {
        let mut found = Vec::new();
        self.python.dict_entries(modules, &mut |key, module| {
            found.extend(self.python.text(key).map(|name| (name, module)));
            found.len() <= MAX_ROOTS
        });
        for (name, module) in found {
            if self.has_roots(MAX_ROOTS) {
                return;
            }
            let package = name.split('.').next().unwrap_or_default();
            let is_main = &*name == "__main__";
            let cost = match package {
                _ if is_main => MAIN_COST,
                _ if LIBRARIES.contains(&package) => LIBRARY_COST,
                _ => MODULE_COST,
            };
            let step = self.add_root(name.to_string(), !is_main);
            let class = HolderClass::Variable;
            self.graph.push(module, NO_PARENT, Edge { cost, class, step });
        }
    }

    /// Adds the local variables of all functions on a thread's stack. Those of the outermost function get the lowest
    /// cost, because they live longest.
    fn add_frames(&mut self, thread: u64, number: usize) {
        let python = self.python;
        let max = python.reader.budget.options.maximums.frames;
        let (frames, are_more) = python.frames(thread, max).unwrap_or_default();
        if are_more {
            let sentence =
                format!("Only {max} frames of each thread were searched for local variables.");
            python.reader.budget.limits.add_end(sentence);
        }
        for (depth, &frame) in frames.iter().rev().enumerate() {
            // Leave room for the modules.
            if self.has_roots(MAX_ROOTS / 2) {
                return;
            }
            let Some(function) = python.frame_function(frame) else { continue };
            let thread = if number == 0 { String::new() } else { format!("thread {number}: ") };
            let root = self.add_root(format!("{thread}{function}()"), false);
            let depth = u16::try_from(depth.min(80)).unwrap_or_default();
            let outer = depth.min(OUTER_CALLS);
            let calls_cost = outer * OUTER_CALL_COST + (depth - outer) * INNER_CALL_COST;
            let cost = FRAME_COST + calls_cost + if number == 0 { 0 } else { 4 };
            // Use the frame as the root of its variables, although a frame is not a Python object.
            let edge = Edge { cost, class: HolderClass::Variable, step: root };
            self.graph.push(frame, NO_PARENT, edge);
            let Some(&parent) = self.graph.index.get(&frame) else { return };
            if let Some(node) = self.graph.nodes.get_mut(parent as usize) {
                node.is_done = true;
            }
            let parent =
                ParentObject { index: parent, object: frame, cost, class: HolderClass::Variable };
            self.push_locals(frame, &parent, 0);
        }
    }
}
