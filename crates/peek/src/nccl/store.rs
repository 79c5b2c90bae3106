//! The store through which the ranks of a job found each other: `HOST:PORT` of a `TCPStore`, behind `PrefixStore`s.
//!
//! ```text
//! PrefixStore {…, prefix "cuda/", store} ─► PrefixStore {…, prefix "tp/", store} ─► TCPStore {…, host, port}
//! ```

use super::classes::{AddressSpace, PREFIX_STORE, STORE_SUFFIX, TCP_STORE};
use super::copies::{Copies, Parsed, Stop};
use super::strings::StringLayout;

/// Number of bytes of a store that are searched.
const STORE_BYTES: usize = 160;
/// Maximum number of stores behind each other. PyTorch uses up to five.
const MAX_DEPTH: usize = 8;
/// Offset at which the fields of the classes begin, after those of `Store`.
const FIELDS: usize = 16;

#[derive(Debug, Default, PartialEq)]
pub struct Store {
    /// `HOST:PORT`, if it is a `TCPStore`.
    pub address: Option<String>,
    /// Prefixes of the keys, outermost first. Empty with the new string layout, which no release without names has.
    pub prefixes: Vec<String>,
}

impl Store {
    pub fn read(
        space: &AddressSpace,
        copies: &Copies,
        layout: StringLayout,
        mut object: u64,
    ) -> Parsed<Self> {
        let mut store = Self::default();
        for _ in 0..MAX_DEPTH {
            match space.class(copies, object)? {
                TCP_STORE => {
                    store.address = address(copies, layout, object)?;
                    break;
                }
                PREFIX_STORE => {}
                _ => break,
            }
            let Some((offset, inner)) = inner_store(space, copies, object)? else { break };
            if layout == StringLayout::Old {
                let view = copies.get(object, STORE_BYTES)?;
                store.prefixes.push(layout.read(copies, view, object, offset - layout.size())?);
            }
            object = inner;
        }
        Ok(store)
    }
}

/// Returns offset and address of the store that a `PrefixStore` uses.
fn inner_store(space: &AddressSpace, copies: &Copies, object: u64) -> Parsed<Option<(usize, u64)>> {
    let view = copies.get(object, STORE_BYTES)?;
    for offset in (FIELDS + 8..STORE_BYTES).step_by(8) {
        let Some(word) = view.word(offset).filter(|&word| word != object) else { continue };
        if space.class(copies, word)?.ends_with(STORE_SUFFIX) {
            return Ok(Some((offset, word)));
        }
    }
    Ok(None)
}

/// Returns `HOST:PORT`: the first string that is followed by a port.
fn address(copies: &Copies, layout: StringLayout, object: u64) -> Parsed<Option<String>> {
    let view = copies.get(object, STORE_BYTES)?;
    for offset in (FIELDS..STORE_BYTES - layout.size()).step_by(8) {
        let port = view.half(offset + layout.size()).unwrap_or_default();
        if port == 0 {
            continue;
        }
        match layout.read(copies, view, object, offset) {
            Ok(host) if !host.is_empty() && host.chars().all(|c| c.is_ascii_graphic()) => {
                return Ok(Some(format!("{host}:{port}")));
            }
            Err(Stop::Needs) => return Err(Stop::Needs),
            Ok(_) | Err(_) => {}
        }
    }
    Ok(None)
}
