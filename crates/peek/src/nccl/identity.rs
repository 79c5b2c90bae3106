//! What does not change while a group exists: its name, rank, size, members and store.

use std::collections::HashSet;
use std::sync::Arc;

use gputop_model::process_group::ProcessGroup;

use super::classes::{AddressSpace, OPTIONS, STORE_SUFFIX};
use super::copies::{Copies, Parsed, Stop};
use super::store::Store;
use super::strings::StringLayout;
use crate::memory::view::View;

/// Number of bytes in which the parts of a group are searched: its size in torch 2.7. Other releases have less.
pub const OBJECT_BYTES: usize = 1272;
/// Offset of the first field of any release.
const FIELDS: usize = 16;
/// Maximum number of ranks of a group.
const MAX_SIZE: u32 = 1 << 17;
/// Maximum number of references to an object. Memory that was freed has none, or a pointer at this place.
const MAX_REFERENCES: u32 = 1 << 20;
/// Extent of the options that is searched for the list of members.
const OPTIONS_BYTES: usize = 256;
/// The newest release has a member's rank at most this high.
const MAX_RANK: u64 = 1 << 20;

/// Offsets of the fields in the base class of a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fields {
    /// Offset of the rank. The size follows it.
    pub rank: usize,
    pub name: Option<usize>,
    pub description: Option<usize>,
    pub strings: StringLayout,
}

impl Fields {
    /// Returns the fields of torch 2.4 and later. The description follows the name.
    pub fn newer(object: View<'_>) -> Self {
        const NAME: usize = 32;
        const MAX_LENGTH: u64 = 4096;
        // In the new string layout, the second word of the name is its length. In the old one, it is the pointer to the
        // description.
        let is_new = object.word(NAME + 8).is_some_and(|length| length < MAX_LENGTH);
        let strings = if is_new { StringLayout::New } else { StringLayout::Old };
        Self { rank: 16, name: Some(NAME), description: Some(NAME + strings.size()), strings }
    }

    /// Returns the end of the fields.
    pub fn end(&self) -> usize {
        let texts = self.name.into_iter().chain(self.description);
        texts.map(|at| at + self.strings.size()).fold(self.rank + 8, usize::max)
    }
}

#[derive(Debug, Clone, PartialEq, Default)]
pub struct Identity {
    pub name: String,
    pub description: String,
    pub rank: u32,
    pub size: u32,
    pub members: Option<Arc<[u32]>>,
    pub store: Option<String>,
}

/// The pointers of a group to objects of known classes.
#[derive(Debug)]
pub struct Parts<'a> {
    /// Class of the object that the word at each offset points to, by the index of the word.
    pub classes: Vec<&'a str>,
    pub options: Option<(usize, u64)>,
    pub store: Option<(usize, u64)>,
}

impl<'a> Parts<'a> {
    pub fn find(space: &AddressSpace, copies: &'a Copies, object: View<'_>) -> Parsed<Self> {
        // Ask for all classes first, so that one system call copies what they need.
        let classes: Vec<Parsed<&str>> =
            object.words().map(|word| space.class(copies, word)).collect();
        let classes: Vec<&str> = classes.into_iter().collect::<Parsed<_>>()?;
        let find = |is_wanted: fn(&str) -> bool| {
            let index = (FIELDS / 8..classes.len()).find(|index| is_wanted(classes[*index]))?;
            Some((index * 8, object.word(index * 8)?))
        };
        let options = find(|class| class == OPTIONS);
        let store = find(|class| class.ends_with(STORE_SUFFIX));
        Ok(Self { classes, options, store })
    }
}

/// Returns true if an object with this reference count exists. Other bits of the word count weak references.
pub fn is_referenced(word: Option<u32>) -> bool {
    word.is_some_and(|count| (1..=MAX_REFERENCES).contains(&count))
}

impl Identity {
    /// Returns the group without what changes.
    pub fn group(&self) -> ProcessGroup {
        ProcessGroup {
            name: self.name.clone(),
            description: self.description.clone(),
            rank: self.rank,
            size: self.size,
            members: self.members.clone(),
            ..ProcessGroup::default()
        }
    }

    pub fn read(
        space: &AddressSpace,
        copies: &Copies,
        (address, object): (u64, View<'_>),
        fields: &Fields,
        parts: &Parts<'_>,
    ) -> Parsed<Self> {
        let (rank, size) = object
            .int(fields.rank)
            .zip(object.int(fields.rank + 4))
            .filter(|(rank, size)| rank < size && *size <= MAX_SIZE)
            .ok_or(Stop::Refused("the process group has an impossible rank or size"))?;
        let text = |offset: Option<usize>| {
            let text = offset.map(|at| fields.strings.read(copies, object, address, at));
            text.unwrap_or_else(|| Ok(String::new()))
        };
        let store = parts.store.map(|(_, store)| Store::read(space, copies, fields.strings, store));
        let members = parts.options.map(|(_, options)| members(copies, options, size));
        let (name, description) = (text(fields.name), text(fields.description));
        let store = store.transpose()?.unwrap_or_default();
        let mut name = name?;
        if fields.name.is_none() {
            name = name_of(&store).ok_or(Stop::Refused("the process group has no name"))?;
        }
        Ok(Self {
            name,
            description: description?,
            rank,
            size,
            members: members.transpose()?.flatten(),
            store: store.address,
        })
    }
}

/// Returns the name of a group of torch 2.1, which is only in the prefixes of its store: `cuda/`, then `NAME/`.
fn name_of(store: &Store) -> Option<String> {
    let names = store.prefixes.iter().map(|prefix| prefix.trim_end_matches('/'));
    names.filter(|name| !matches!(*name, "cuda" | "cpu")).map(str::to_owned).next()
}

/// Returns `Options::global_ranks_in_group`: a vector of as many different ranks as the group has members. Returns
/// `None` if there is none or if it holds the ranks 0, 1, 2, …
fn members(copies: &Copies, options: u64, size: u32) -> Parsed<Option<Arc<[u32]>>> {
    let view = copies.get(options, OPTIONS_BYTES)?;
    let words: Vec<u64> = view.words().collect();
    let len = size as usize * 8;
    let is_vector = |v: &&[u64]| v[0] != 0 && v[1].wrapping_sub(v[0]) == len as u64 && v[1] <= v[2];
    let vectors: Vec<Parsed<View<'_>>> = words[FIELDS / 8..]
        .windows(3)
        .filter(is_vector)
        .map(|vector| copies.get(vector[0], len))
        .collect();
    for vector in vectors {
        let ranks: Vec<u64> = match vector {
            Ok(vector) => vector.words().collect(),
            Err(Stop::Needs) => return Err(Stop::Needs),
            Err(_) => continue,
        };
        let is_distinct = ranks.iter().collect::<HashSet<_>>().len() == ranks.len();
        if is_distinct && ranks.iter().all(|&rank| rank < MAX_RANK) {
            let is_same = (0..).zip(&ranks).all(|(index, &rank)| rank == index);
            let ranks = ranks.into_iter().filter_map(|rank| u32::try_from(rank).ok());
            return Ok((!is_same).then(|| ranks.collect()));
        }
    }
    Ok(None)
}
