//! Names tensors by the cheapest path of references from a root: a module of `sys.modules`, or a local variable of a
//! running function.
//!
//! The search is Dijkstra's algorithm with small costs, so `model.layers.3.weight` wins over
//! `opt.param_groups[0]['params'][17]`. It stops when every wanted tensor has a name.
//!
//! ```text
//! __main__ ─4─► .model ─► .layers ─► .3 ─► .weight        cost 4 + 2 + 1 + 1 + 1
//!    └──────► .trainer ─► .history ─► [12]                 cost 4 + 2 + 4 + 6
//! ```

use std::rc::Rc;

use super::interpreter::Interpreter;
use super::python::{Kind, Python, TypeInfo};
use super::reader::AddressMap;
use super::tensors::Tensors;
use crate::collect::memory::{Memory, is_pointer};
use crate::model::holders::HolderClass;
use crate::model::text::visible;

/// Number of different costs. Longer paths get the highest cost.
const COSTS: usize = 600;
/// Approximate memory of one node, with its entries in the index and the queue.
const NODE_BYTES: usize = 96;
const MAX_INTERPRETERS: usize = 16;
const MAX_THREADS: usize = 512;
const MAX_FRAMES: usize = 2_000;
/// Maximum length of a path.
const MAX_DEPTH: usize = 60;
const MAX_NAME: usize = 240;
/// Containers with more items are searched after all cheaper paths, because most of them hold data.
const MANY_ITEMS: u64 = 4_096;
const MANY_ITEMS_COST: u16 = 40;
/// Maximum size of an object of unknown type whose words are followed as pointers.
const MAX_OPAQUE_BYTES: u64 = 512;
/// Maximum number of second names, such as those of tied weights.
const MAX_ALIASES: usize = 4_096;

/// Maximum number of attributes of one instance.
const MAX_ATTRIBUTES: usize = 65_536;

const MAIN_COST: u16 = 4;
const FRAME_COST: u16 = 6;
const MODULE_COST: u16 = 30;
const LIBRARY_COST: u16 = 90;
/// Modules in which tensors of the program are rare.
const LIBRARIES: &[&str] = &["torch", "numpy", "sympy", "triton"];

/// A reference from one object to another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    /// Index of the root's name.
    Root(u32),
    /// Address of the `str` that is the name of an attribute.
    Attribute(u64),
    /// Address of the C text that is the name of a slot.
    Slot(u64),
    /// Address of the key.
    Key(u64),
    Index(u64),
    /// Address of the name of a local variable.
    Local(u64),
    /// State of an optimizer; the key is a tensor.
    StateOf(u64),
    Field(&'static str),
    /// A reference that the name does not show, such as the content of a closure's cell.
    Hidden,
}

const NO_PARENT: u32 = u32::MAX;

#[derive(Debug, Clone, Copy)]
struct Node {
    object: u64,
    parent: u32,
    cost: u16,
    class: HolderClass,
    step: Step,
    is_done: bool,
}

/// A reference that a node adds.
#[derive(Debug, Clone, Copy)]
struct Edge {
    cost: u16,
    class: HolderClass,
    step: Step,
}

/// The path to a tensor.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct NamedPath {
    pub name: String,
    pub class: HolderClass,
    pub cost: u32,
    pub path: Vec<String>,
    pub aliases: Vec<String>,
}

/// The objects that were reached so far, and those that wait to be expanded.
#[derive(Debug)]
struct Graph {
    nodes: Vec<Node>,
    index: AddressMap<u32>,
    queue: Vec<Vec<u32>>,
    max_nodes: usize,
    is_full: bool,
    /// Node of a tensor, and the parent and step of its second name.
    aliases: Vec<(u32, u32, Step)>,
}

impl Graph {
    fn push(&mut self, object: u64, parent: u32, edge: Edge) {
        let cost = edge.cost.min(COSTS as u16 - 1);
        let node = Node {
            object,
            parent,
            cost,
            class: edge.class,
            step: edge.step,
            is_done: false,
        };
        let index = match self.index.get(&object) {
            Some(&index) => {
                let Some(old) = self.nodes.get_mut(index as usize) else {
                    return;
                };
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

/// The search for names.
#[derive(Debug)]
pub struct Names<'a, M> {
    python: &'a Python<'a, M>,
    tensors: &'a Tensors<'a, M>,
    graph: Graph,
    roots: Vec<Root>,
}

/// A root of a path.
#[derive(Debug)]
struct Root {
    text: String,
    /// True if names start with the text. Names of the program's own variables omit it.
    is_shown: bool,
}

impl<'a, M: Memory> Names<'a, M> {
    pub fn new(python: &'a Python<'a, M>, tensors: &'a Tensors<'a, M>, max_bytes: usize) -> Self {
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

    /// Searches until `wanted` is empty: the addresses of Python tensors. Returns false if a limit ended the search.
    pub fn search(
        &mut self,
        interpreter: &Interpreter,
        wanted: &mut AddressMap<()>,
        percent: u32,
    ) -> bool {
        self.add_roots(interpreter);
        let mut visits = 0_usize;
        for cost in 0..COSTS {
            let mut next = 0;
            // Expanding a node may add nodes of the same cost.
            while let Some(&index) = self
                .graph
                .queue
                .get(cost)
                .and_then(|bucket| bucket.get(next))
            {
                next += 1;
                visits += 1;
                if visits.is_multiple_of(256) && self.python.reader.budget.is_beyond(percent) {
                    return false;
                }
                self.visit(index, cost, wanted);
                if wanted.is_empty() {
                    return true;
                }
            }
            if let Some(bucket) = self.graph.queue.get_mut(cost) {
                *bucket = Vec::new();
            }
        }
        !self.graph.is_full && !self.python.reader.budget.is_beyond(percent)
    }

    fn visit(&mut self, index: u32, cost: usize, wanted: &mut AddressMap<()>) {
        let Some(node) = self.graph.nodes.get(index as usize).copied() else {
            return;
        };
        let is_deferred = usize::from(node.cost) < cost;
        if node.is_done || usize::from(node.cost) > cost {
            return;
        }
        wanted.remove(&node.object);
        let Some(class) = self.python.type_of(node.object) else {
            return;
        };
        if !is_deferred && self.has_many_items(node.object, class.kind) {
            let later = (cost + usize::from(MANY_ITEMS_COST)).min(COSTS - 1);
            if later > cost {
                self.graph.queue[later].push(index);
                return;
            }
        }
        if let Some(node) = self.graph.nodes.get_mut(index as usize) {
            node.is_done = true;
        }
        self.expand(index, node, &class);
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
        let mut state = interpreter.head;
        for _ in 0..MAX_INTERPRETERS {
            if !is_pointer(state) {
                break;
            }
            let mut thread = python
                .reader
                .word(state.wrapping_add(layout.threads))
                .unwrap_or(0);
            let mut threads = Vec::new();
            while is_pointer(thread) && threads.len() < MAX_THREADS {
                threads.push(thread);
                thread = python.reader.word(thread.wrapping_add(8)).unwrap_or(0);
            }
            // The main thread is the last one of the list.
            for (number, thread) in threads.into_iter().rev().enumerate() {
                self.add_frames(thread, number);
            }
            if let Some(modules) = python.reader.pointer(state.wrapping_add(layout.modules)) {
                self.add_modules(modules);
            }
            state = python
                .reader
                .word(state.wrapping_add(layout.next))
                .unwrap_or(0);
        }
    }

    fn add_root(&mut self, text: String, is_shown: bool) -> Step {
        self.roots.push(Root { text, is_shown });
        Step::Root(u32::try_from(self.roots.len() - 1).unwrap_or(u32::MAX))
    }

    fn add_modules(&mut self, modules: u64) {
        let mut found = Vec::new();
        self.python.dict_entries(modules, &mut |key, module| {
            found.extend(self.python.text(key).map(|name| (name, module)));
            true
        });
        for (name, module) in found {
            let package = name.split('.').next().unwrap_or_default();
            let is_main = &*name == "__main__";
            let cost = match package {
                _ if is_main => MAIN_COST,
                _ if LIBRARIES.contains(&package) => LIBRARY_COST,
                _ => MODULE_COST,
            };
            let step = self.add_root(name.to_string(), !is_main);
            let class = HolderClass::Variable;
            self.graph
                .push(module, NO_PARENT, Edge { cost, class, step });
        }
    }

    /// Adds the local variables of all functions that a thread executes. The outermost function has the cheapest names,
    /// because its variables live longest.
    fn add_frames(&mut self, thread: u64, number: usize) {
        let (python, layout) = (self.python, self.python.layout);
        let first = thread.wrapping_add(layout.thread_frame);
        let mut frame = python.reader.word(first).unwrap_or(0);
        if let Some(in_c_frame) = layout.c_frame {
            frame = python
                .reader
                .word(frame.wrapping_add(in_c_frame))
                .unwrap_or(0);
        }
        let mut frames = Vec::new();
        while is_pointer(frame) && frames.len() < MAX_FRAMES {
            frames.push(frame);
            frame = python
                .reader
                .word(frame.wrapping_add(layout.previous_frame))
                .unwrap_or(0);
        }
        for (depth, &frame) in frames.iter().rev().enumerate() {
            let Some(function) = python.frame_function(frame) else {
                continue;
            };
            let thread = if number == 0 {
                String::new()
            } else {
                format!("thread {number}: ")
            };
            let root = self.add_root(format!("{thread}{function}()"), false);
            let depth = u16::try_from(depth.min(80)).unwrap_or_default();
            let cost = FRAME_COST + depth + if number == 0 { 0 } else { 4 };
            // The frame stands for the root of its variables; its address is not a Python object.
            let edge = Edge {
                cost,
                class: HolderClass::Variable,
                step: root,
            };
            self.graph.push(frame, NO_PARENT, edge);
            let Some(&parent) = self.graph.index.get(&frame) else {
                return;
            };
            if let Some(node) = self.graph.nodes.get_mut(parent as usize) {
                node.is_done = true;
            }
            self.push_locals(frame, parent, cost);
        }
    }

    fn push_locals(&mut self, frame: u64, parent: u32, cost: u16) {
        let mut found = Vec::new();
        self.python
            .frame_locals(frame, &mut |name, value| found.push((name, value)));
        for (name, value) in found {
            let step = name.map_or(Step::Hidden, Step::Local);
            self.push(
                value,
                parent,
                Edge {
                    cost,
                    class: HolderClass::Variable,
                    step,
                },
            );
        }
    }

    /// Adds a reference, unless the object cannot lead to a tensor.
    fn push(&mut self, object: u64, parent: u32, edge: Edge) {
        let kind = self.python.kind_of(object);
        // Modules are roots. Following `import torch` would make all of PyTorch as cheap as the program's own objects.
        let is_leaf = matches!(
            kind,
            None | Some(Kind::Leaf | Kind::Text | Kind::Int | Kind::Code | Kind::Module)
        );
        if !is_leaf {
            self.graph.push(object, parent, edge);
        }
    }

    /// Adds the references of an object.
    fn expand(&mut self, index: u32, node: Node, class: &TypeInfo) {
        let (python, object, cost) = (self.python, node.object, node.cost);
        // Everything below the state of an optimizer is part of that state.
        let inherited = match node.class {
            HolderClass::OptimizerState => HolderClass::OptimizerState,
            _ => HolderClass::Variable,
        };
        let edge = |extra: u16, step: Step| Edge {
            cost: cost.saturating_add(extra),
            class: inherited,
            step,
        };
        match class.kind {
            Kind::Dict => {
                self.expand_dict(index, node, inherited);
                self.expand_attributes(index, node, class, inherited);
            }
            Kind::List | Kind::Tuple => {
                python.items(object, class.kind, &mut |item, at| {
                    self.push(item, index, edge(6, Step::Index(at)));
                });
                if class.kind == Kind::List {
                    self.expand_attributes(index, node, class, inherited);
                }
            }
            Kind::Set => {
                python.set_members(object, &mut |member| {
                    self.push(member, index, edge(8, Step::Field("{…}")));
                });
            }
            Kind::Deque => {
                python.deque_items(object, &mut |item, at| {
                    self.push(item, index, edge(6, Step::Index(at)));
                });
            }
            Kind::Module => {
                let dict = python.reader.pointer(object.wrapping_add(16));
                self.push_entries(dict, index, |name| edge(2, Step::Attribute(name)));
            }
            Kind::Function | Kind::Method | Kind::Cell | Kind::Traceback => {
                self.expand_fields(index, node, class.kind, inherited);
            }
            Kind::Generator | Kind::Frame => {
                if let Some(frame) = self.frame_of(object, class.kind) {
                    self.push_locals(frame, index, cost.saturating_add(8));
                }
            }
            Kind::Type => {
                let flags = python.reader.word(object.wrapping_add(168)).unwrap_or(0);
                let dict = python.reader.pointer(object.wrapping_add(264));
                let dict = dict.filter(|&dict| python.kind_of(dict) == Some(Kind::Dict));
                // Types that are not created by Python code hold no tensor.
                if flags & 1 << 9 != 0 {
                    self.push_entries(dict, index, |name| edge(12, Step::Attribute(name)));
                }
            }
            Kind::Tensor => self.expand_tensor(index, node, class),
            Kind::Instance => {
                self.expand_attributes(index, node, class, inherited);
                self.expand_words(index, node, class, inherited);
            }
            Kind::Leaf | Kind::Text | Kind::Int | Kind::Code => {}
        }
    }

    /// Adds the references at fixed offsets in functions, methods, tracebacks and cells.
    fn expand_fields(&mut self, index: u32, node: Node, kind: Kind, class: HolderClass) {
        let closure = self.python.layout.function_closure;
        let fields: &[(u64, Step, u16)] = match kind {
            Kind::Function => &[
                (closure, Step::Field(".__closure__"), 10),
                (closure - 8, Step::Field(".__kwdefaults__"), 12),
                (closure - 16, Step::Field(".__defaults__"), 12),
            ],
            Kind::Method => &[
                (24, Step::Field(".__self__"), 4),
                (16, Step::Field(".__func__"), 8),
            ],
            Kind::Traceback => &[
                (16, Step::Field(".tb_next"), 1),
                (24, Step::Field(".tb_frame"), 2),
            ],
            _ => &[(16, Step::Hidden, 1)],
        };
        for &(at, step, extra) in fields {
            if let Some(value) = self.python.reader.pointer(node.object.wrapping_add(at)) {
                let cost = node.cost.saturating_add(extra);
                self.push(value, index, Edge { cost, class, step });
            }
        }
    }

    /// Returns the frame that a generator or a frame object contains or points to.
    fn frame_of(&self, object: u64, kind: Kind) -> Option<u64> {
        let layout = &self.python.layout;
        let is_embedded = layout.minor > 10;
        match kind {
            // Up to 3.10 the object is the frame itself.
            Kind::Frame if is_embedded => self.python.reader.pointer(object.wrapping_add(24)),
            Kind::Frame => Some(object),
            _ if is_embedded => Some(object.wrapping_add(layout.generator_frame)),
            _ => {
                let frame = object.wrapping_add(layout.generator_frame);
                self.python.reader.pointer(frame)
            }
        }
    }

    fn push_entries(&mut self, dict: Option<u64>, parent: u32, edge: impl Fn(u64) -> Edge) {
        if let Some(dict) = dict {
            self.python.dict_entries(dict, &mut |key, value| {
                self.push(value, parent, edge(key));
                !self.graph.is_full
            });
        }
    }

    fn expand_dict(&mut self, index: u32, node: Node, class: HolderClass) {
        let python = self.python;
        let cost = |extra: u16| node.cost.saturating_add(extra);
        python.dict_entries(node.object, &mut |key, value| {
            let is_tensor = python.kind_of(key) == Some(Kind::Tensor);
            if is_tensor {
                let step = Step::Field("{…}");
                self.push(
                    key,
                    index,
                    Edge {
                        cost: cost(12),
                        class: HolderClass::Variable,
                        step,
                    },
                );
                self.push(
                    value,
                    index,
                    Edge {
                        cost: cost(1),
                        class,
                        step: Step::StateOf(key),
                    },
                );
            } else {
                self.push(
                    value,
                    index,
                    Edge {
                        cost: cost(4),
                        class,
                        step: Step::Key(key),
                    },
                );
            }
            !self.graph.is_full
        });
    }

    /// A tensor refers to its gradient in C++, and may have attributes, such as the local part of a DTensor.
    fn expand_tensor(&mut self, index: u32, node: Node, class: &TypeInfo) {
        self.expand_attributes(index, node, class, node.class);
        let gradient = self
            .tensors
            .of_object(node.object)
            .map_or(0, |tensor| tensor.gradient);
        if let Some(gradient) = self.tensors.of_impl(gradient) {
            let edge = Edge {
                cost: node.cost.saturating_add(1),
                class: HolderClass::Gradient,
                step: Step::Field(".grad"),
            };
            self.push(gradient.object, index, edge);
        }
    }

    /// Adds the attributes of an instance. The parameters, buffers and children of a module are its attributes, too.
    fn expand_attributes(
        &mut self,
        index: u32,
        node: Node,
        class: &TypeInfo,
        inherited: HolderClass,
    ) {
        let python = self.python;
        let mut found: Vec<(u64, u64)> = Vec::new();
        python.attributes(node.object, class, &mut |name, value| {
            found.push((name, value));
            found.len() < MAX_ATTRIBUTES
        });
        let has = |wanted: &str| {
            found
                .iter()
                .any(|&(name, _)| python.text(name).as_deref() == Some(wanted))
        };
        let is_module = class.kind == Kind::Instance && has("_parameters");
        let is_optimizer = class.kind == Kind::Instance && has("param_groups") && has("state");
        let extra = if class.kind == Kind::Dict { 8 } else { 4 };
        let cost = |extra: u16| node.cost.saturating_add(extra);
        for (name, value) in found {
            let step = Step::Attribute(name);
            let text = if is_module || is_optimizer {
                python.text(name)
            } else {
                None
            };
            let members = match text.as_deref() {
                Some("_parameters") if is_module => Some(HolderClass::Parameter),
                Some("_buffers") if is_module => Some(HolderClass::Buffer),
                Some("_modules") if is_module => Some(HolderClass::Variable),
                _ => None,
            };
            if let Some(class) = members.filter(|_| python.kind_of(value) == Some(Kind::Dict)) {
                self.push_entries(Some(value), index, |name| Edge {
                    cost: cost(1),
                    class,
                    step: Step::Attribute(name),
                });
            } else if is_optimizer && text.as_deref() == Some("state") {
                let class = HolderClass::OptimizerState;
                self.push(
                    value,
                    index,
                    Edge {
                        cost: cost(1),
                        class,
                        step,
                    },
                );
            } else {
                self.push(
                    value,
                    index,
                    Edge {
                        cost: cost(extra),
                        class: inherited,
                        step,
                    },
                );
            }
        }
    }

    /// Adds the slots of an instance, and the words that point to an object: the fields of a type written in C.
    fn expand_words(&mut self, index: u32, node: Node, class: &TypeInfo, inherited: HolderClass) {
        let python = self.python;
        let edge = |extra: u16, step: Step| Edge {
            cost: node.cost.saturating_add(extra),
            class: inherited,
            step,
        };
        for &(offset, name) in &class.members {
            if let Some(value) = python.reader.pointer(node.object.wrapping_add(offset)) {
                self.push(value, index, edge(5, Step::Slot(name)));
            }
        }
        if class.basic_size > MAX_OPAQUE_BYTES {
            return;
        }
        for offset in (16..class.basic_size).step_by(8) {
            if class.members.iter().any(|&(member, _)| member == offset) {
                continue;
            }
            let Some(value) = python.reader.pointer(node.object.wrapping_add(offset)) else {
                continue;
            };
            let is_traceback = python.kind_of(value) == Some(Kind::Traceback);
            let step = match is_traceback && class.is_exception() {
                true => Step::Field(".__traceback__"),
                false => Step::Field(".<field>"),
            };
            self.push(value, index, edge(if is_traceback { 4 } else { 14 }, step));
        }
    }

    /// Returns the name of a Python tensor.
    pub fn path_of(&self, object: u64) -> Option<NamedPath> {
        let &index = self.graph.index.get(&object)?;
        let node = self.graph.nodes.get(index as usize)?;
        let (name, path) = self.render(node.parent, node.step, 0);
        let aliases = self
            .graph
            .aliases
            .iter()
            .filter(|(tensor, ..)| *tensor == index);
        Some(NamedPath {
            name,
            class: node.class,
            cost: u32::from(node.cost),
            path,
            aliases: aliases
                .map(|&(_, parent, step)| self.render(parent, step, 0).0)
                .collect(),
        })
    }

    /// Renders the path that ends with a step from a parent.
    fn render(&self, parent: u32, step: Step, nesting: usize) -> (String, Vec<String>) {
        let mut steps = vec![step];
        let mut at = parent;
        while let Some(node) = self.graph.nodes.get(at as usize) {
            steps.push(node.step);
            at = node.parent;
            if steps.len() > MAX_DEPTH {
                break;
            }
        }
        let mut name = String::new();
        let mut path = Vec::new();
        for &step in steps.iter().rev() {
            let text = self.step_text(step, nesting);
            let is_shown = match step {
                Step::Root(root) => self
                    .roots
                    .get(root as usize)
                    .is_some_and(|root| root.is_shown),
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

    fn step_text(&self, step: Step, nesting: usize) -> String {
        let python = self.python;
        let named =
            |name: Option<Rc<str>>| name.map_or_else(|| ".?".to_owned(), |name| format!(".{name}"));
        match step {
            Step::Root(root) => {
                let root = self.roots.get(root as usize);
                root.map_or_else(String::new, |root| visible(root.text.as_bytes(), MAX_NAME))
            }
            Step::Attribute(name) | Step::Local(name) => match python.text(name) {
                // The local part of a distributed tensor has the name of the tensor.
                Some(name) if &*name == "_local_tensor" => String::new(),
                name => named(name),
            },
            Step::Slot(name) => named(python.reader.text(name, MAX_NAME).map(Rc::from)),
            Step::Key(key) => match python.type_of(key).map(|class| class.kind) {
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
            Step::Index(index) => format!("[{index}]"),
            Step::StateOf(tensor) => {
                let node = self
                    .graph
                    .index
                    .get(&tensor)
                    .and_then(|&index| self.graph.nodes.get(index as usize));
                match node {
                    // The name of a key cannot contain the name of another key.
                    Some(node) if nesting == 0 => {
                        format!("[{}]", self.render(node.parent, node.step, 1).0)
                    }
                    _ => "[<tensor>]".to_owned(),
                }
            }
            Step::Field(text) => text.to_owned(),
            Step::Hidden => String::new(),
        }
    }
}
