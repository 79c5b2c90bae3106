//! Adds the references from Python objects to the search. Each reference has an extra cost, which helps to decide which
//! of several names a tensor gets.

use gputop_model::holders::HolderClass;

use super::{Edge, MAX_ATTRIBUTES, MAX_OPAQUE_BYTES, Names, ReferenceStep};
use crate::cpython::objects::{Kind, TypeInfo};

/// Offset of the attribute `base` of a CuPy array.
const CUPY_BASE: u64 = 120;

#[derive(Debug, Clone, Copy)]
pub(super) struct ParentObject {
    pub index: u32,
    pub object: u64,
    pub cost: u16,
    /// Class of the objects that this object refers to.
    pub class: HolderClass,
}

impl ParentObject {
    fn edge(&self, extra: u16, step: ReferenceStep) -> Edge {
        self.edge_to(self.class, extra, step)
    }

    fn edge_to(&self, class: HolderClass, extra: u16, step: ReferenceStep) -> Edge {
        Edge { cost: self.cost.saturating_add(extra), class, step }
    }
}

impl Names<'_> {
    /// Adds a reference, unless its target cannot lead to a tensor.
    fn push(&mut self, object: u64, parent: &ParentObject, edge: Edge) {
        // Skip modules, which are already roots. Following `import torch` would give PyTorch's objects the same low
        // cost as the program's objects.
        let is_leaf = matches!(
            self.python.kind_of(object),
            None | Some(Kind::Leaf | Kind::Text | Kind::Int | Kind::Code | Kind::Module)
        );
        if !is_leaf {
            self.graph.push(object, parent.index, edge);
        }
    }

    pub(super) fn expand(&mut self, parent: &ParentObject, class: &TypeInfo) {
        let (python, object) = (self.python, parent.object);
        match class.kind {
            Kind::Dict => {
                self.expand_dict(parent);
                self.expand_attributes(parent, class);
            }
            Kind::List | Kind::Tuple => {
                python.items(object, class.kind, &mut |item, at| {
                    self.push(item, parent, parent.edge(6, ReferenceStep::Index(at)));
                });
                if class.kind == Kind::List {
                    self.expand_attributes(parent, class);
                }
            }
            Kind::Set => {
                python.set_members(object, &mut |member| {
                    self.push(member, parent, parent.edge(8, ReferenceStep::Field("{…}")));
                });
            }
            Kind::Deque => {
                python.deque_items(object, &mut |item, at| {
                    self.push(item, parent, parent.edge(6, ReferenceStep::Index(at)));
                });
            }
            Kind::Module => {
                let dict = python.reader.pointer(object.wrapping_add(16));
                self.push_entries(dict, parent, parent.class, 2);
            }
            Kind::Function | Kind::Method | Kind::Cell | Kind::Traceback => {
                self.expand_fields(parent, class.kind);
            }
            Kind::Generator | Kind::Frame => {
                if let Some(frame) = self.frame_of(object, class.kind) {
                    self.push_locals(frame, parent, 8);
                }
            }
            Kind::Type => {
                let flags = python.reader.word(object.wrapping_add(168)).unwrap_or(0);
                let dict = python.reader.pointer(object.wrapping_add(264));
                let dict = dict.filter(|&dict| python.kind_of(dict) == Some(Kind::Dict));
                // Skip types not created by Python code, which contain no tensors.
                if flags & 1 << 9 != 0 {
                    self.push_entries(dict, parent, parent.class, 12);
                }
            }
            Kind::Tensor => {
                self.expand_attributes(parent, class);
                // The local part of a distributed tensor is in a slot.
                self.expand_slots(parent, class, 1);
                self.expand_gradient(parent);
            }
            Kind::JaxArray => self.expand_attributes(parent, class),
            Kind::CupyArray => {
                self.expand_attributes(parent, class);
                self.expand_base(parent);
            }
            Kind::Instance => {
                self.expand_attributes(parent, class);
                self.expand_words(parent, class);
            }
            Kind::Leaf | Kind::Text | Kind::Int | Kind::Code => {}
        }
    }

    pub(super) fn push_locals(&mut self, frame: u64, parent: &ParentObject, extra: u16) {
        self.python.frame_locals(frame, &mut |name, value| {
            let step = name.map_or(ReferenceStep::Hidden, ReferenceStep::Local);
            self.push(value, parent, parent.edge_to(HolderClass::Variable, extra, step));
        });
    }

    /// Adds references at fixed offsets in functions, methods, tracebacks and cells.
    fn expand_fields(&mut self, parent: &ParentObject, kind: Kind) {
        let closure = self.python.layout.function_closure;
        let fields: &[(u64, ReferenceStep, u16)] = match kind {
            Kind::Function => &[
                (closure, ReferenceStep::Field(".__closure__"), 10),
                (closure - 8, ReferenceStep::Field(".__kwdefaults__"), 12),
                (closure - 16, ReferenceStep::Field(".__defaults__"), 12),
            ],
            Kind::Method => &[
                (24, ReferenceStep::Field(".__self__"), 4),
                (16, ReferenceStep::Field(".__func__"), 8),
            ],
            Kind::Traceback => &[
                (16, ReferenceStep::Field(".tb_next"), 1),
                (24, ReferenceStep::Field(".tb_frame"), 2),
            ],
            _ => &[(16, ReferenceStep::Hidden, 1)],
        };
        for &(at, step, extra) in fields {
            if let Some(value) = self.python.reader.pointer(parent.object.wrapping_add(at)) {
                self.push(value, parent, parent.edge(extra, step));
            }
        }
    }

    /// Returns the frame that a generator or frame object contains or points to.
    fn frame_of(&self, object: u64, kind: Kind) -> Option<u64> {
        let layout = &self.python.layout;
        let is_embedded = layout.minor > 10;
        match kind {
            // In Python 3.10 and earlier, the frame object itself is the frame.
            Kind::Frame if is_embedded => self.python.reader.pointer(object.wrapping_add(24)),
            Kind::Frame => Some(object),
            _ if is_embedded => Some(object.wrapping_add(layout.generator_frame)),
            _ => {
                let frame = object.wrapping_add(layout.generator_frame);
                self.python.reader.pointer(frame)
            }
        }
    }

    /// Adds the values of an attribute dictionary.
    fn push_entries(
        &mut self,
        dict: Option<u64>,
        parent: &ParentObject,
        class: HolderClass,
        extra: u16,
    ) {
        if let Some(dict) = dict {
            self.python.dict_entries(dict, &mut |key, value| {
                let edge = parent.edge_to(class, extra, ReferenceStep::Attribute(key));
                self.push(value, parent, edge);
                !self.graph.is_full
            });
        }
    }

    fn expand_dict(&mut self, parent: &ParentObject) {
        let python = self.python;
        python.dict_entries(parent.object, &mut |key, value| {
            if python.kind_of(key) == Some(Kind::Tensor) {
                let edge = parent.edge_to(HolderClass::Variable, 12, ReferenceStep::Field("{…}"));
                self.push(key, parent, edge);
                self.push(value, parent, parent.edge(1, ReferenceStep::StateOf(key)));
            } else {
                self.push(value, parent, parent.edge(4, ReferenceStep::Key(key)));
            }
            !self.graph.is_full
        });
    }

    /// Adds a reference to a tensor's gradient, which only a C++ object refers to.
    fn expand_gradient(&mut self, parent: &ParentObject) {
        let tensor = self.tensors.of_object(parent.object);
        let gradient = tensor.map_or(0, |tensor| tensor.gradient);
        if let Some(gradient) = self.tensors.of_impl(gradient) {
            let edge = parent.edge_to(HolderClass::Gradient, 1, ReferenceStep::Field(".grad"));
            self.push(gradient.object, parent, edge);
        }
    }

    /// Adds a reference from a view of a CuPy array to the whole array.
    fn expand_base(&mut self, parent: &ParentObject) {
        let base = self.python.reader.pointer(parent.object.wrapping_add(CUPY_BASE));
        let is_array = |base: &u64| self.python.kind_of(*base) == Some(Kind::CupyArray);
        if let Some(base) = base.filter(is_array) {
            self.push(base, parent, parent.edge(1, ReferenceStep::Field(".base")));
        }
    }

    /// Adds the attributes of an instance, including the parameters, buffers and children of a `torch.nn.Module`.
    fn expand_attributes(&mut self, parent: &ParentObject, class: &TypeInfo) {
        let python = self.python;
        let mut found: Vec<(u64, u64)> = Vec::new();
        python.attributes(parent.object, class, &mut |name, value| {
            if found.len() == MAX_ATTRIBUTES {
                let sentence =
                    format!("Only {MAX_ATTRIBUTES} attributes of each object were searched.");
                python.reader.budget.limits.add_end(sentence);
                return false;
            }
            found.push((name, value));
            true
        });
        let has = |wanted: &str| {
            let mut names = found.iter().map(|&(name, _)| python.text(name));
            names.any(|name| name.as_deref() == Some(wanted))
        };
        let is_module = class.kind == Kind::Instance && has("_parameters");
        let is_optimizer = class.kind == Kind::Instance && has("param_groups") && has("state");
        let extra = if class.kind == Kind::Dict { 8 } else { 4 };
        for (name, value) in found {
            let step = ReferenceStep::Attribute(name);
            let text = if is_module || is_optimizer { python.text(name) } else { None };
            let members = match text.as_deref() {
                Some("_parameters") if is_module => Some(HolderClass::Parameter),
                Some("_buffers") if is_module => Some(HolderClass::Buffer),
                Some("_modules") if is_module => Some(HolderClass::Variable),
                _ => None,
            };
            if let Some(class) = members.filter(|_| python.kind_of(value) == Some(Kind::Dict)) {
                self.push_entries(Some(value), parent, class, 1);
                continue;
            }
            let is_state = is_optimizer && text.as_deref() == Some("state");
            let edge = if is_state {
                parent.edge_to(HolderClass::OptimizerState, 1, step)
            } else {
                parent.edge(extra, step)
            };
            self.push(value, parent, edge);
        }
    }

    fn expand_slots(&mut self, parent: &ParentObject, class: &TypeInfo, extra: u16) {
        for &(offset, name) in &class.members {
            if let Some(value) = self.python.reader.pointer(parent.object.wrapping_add(offset)) {
                self.push(value, parent, parent.edge(extra, ReferenceStep::Slot(name)));
            }
        }
    }

    /// Adds references from an instance's slots, and from words that point to objects, such as the fields of a type
    /// written in C.
    fn expand_words(&mut self, parent: &ParentObject, class: &TypeInfo) {
        let python = self.python;
        self.expand_slots(parent, class, 5);
        if class.basic_size > MAX_OPAQUE_BYTES {
            return;
        }
        for offset in (16..class.basic_size).step_by(8) {
            if class.members.iter().any(|&(member, _)| member == offset) {
                continue;
            }
            let Some(value) = python.reader.pointer(parent.object.wrapping_add(offset)) else {
                continue;
            };
            let is_traceback = python.kind_of(value) == Some(Kind::Traceback);
            let edge = match is_traceback {
                true if class.is_exception() => {
                    parent.edge(4, ReferenceStep::Field(".__traceback__"))
                }
                true => parent.edge(4, ReferenceStep::Field(".<field>")),
                false => parent.edge(14, ReferenceStep::Field(".<field>")),
            };
            self.push(value, parent, edge);
        }
    }
}
