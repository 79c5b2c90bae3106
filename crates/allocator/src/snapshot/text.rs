//! The interned strings of a pickle. Each is stored once, so strings can be compared by their IDs.

use indexmap::IndexSet;

pub type TextId = u32;

/// Maximum total size of all strings. The largest snapshots contain a few million bytes of text.
const MAX_BYTES: usize = 512 << 20;

macro_rules! known {
    ($($name:ident = $text:literal,)*) => {
        const KNOWN: &[&str] = &[$($text),*];
        #[allow(non_camel_case_types, clippy::upper_case_acronyms)]
        enum KnownText { $($name,)* }
        $(#[allow(dead_code)] pub const $name: TextId = KnownText::$name as TextId;)*
    };
}

known! {
    // The empty string is also the file name of frames without a file.
    EMPTY = "",
    ACTION = "action",
    ADDR = "addr",
    ADDRESS = "address",
    ALLOC = "alloc",
    ALLOCATOR_SETTINGS = "allocator_settings",
    ACTIVE_ALLOCATED = "active_allocated",
    ACTIVE_AWAITING_FREE = "active_awaiting_free",
    ACTIVE_PENDING_FREE = "active_pending_free",
    BLOCKS = "blocks",
    DEVICE = "device",
    DEVICE_FREE = "device_free",
    DEVICE_TRACES = "device_traces",
    FILENAME = "filename",
    FRAMES = "frames",
    FREE = "free",
    FREE_COMPLETED = "free_completed",
    FREE_REQUESTED = "free_requested",
    HISTORY = "history",
    INACTIVE = "inactive",
    IS_EXPANDABLE = "is_expandable",
    LARGE = "large",
    LINE = "line",
    NAME = "name",
    OOM = "oom",
    POOL_ID = "pool_id",
    REAL_SIZE = "real_size",
    REQUESTED_SIZE = "requested_size",
    SEGMENT_ALLOC = "segment_alloc",
    SEGMENT_FREE = "segment_free",
    SEGMENT_MAP = "segment_map",
    SEGMENT_POOL_ID = "segment_pool_id",
    SEGMENT_TYPE = "segment_type",
    SEGMENT_UNMAP = "segment_unmap",
    SEGMENTS = "segments",
    SIZE = "size",
    SMALL = "small",
    SNAPSHOT = "snapshot",
    STATE = "state",
    STREAM = "stream",
    TIME_US = "time_us",
    TOTAL_SIZE = "total_size",
    USER_DEFINED = "user_defined",
}

#[derive(Default)]
pub struct Texts {
    texts: IndexSet<Box<[u8]>>,
    bytes: usize,
}

impl Texts {
    pub fn new() -> Self {
        let mut texts = Self::default();
        for text in KNOWN {
            texts.intern(text.as_bytes());
        }
        texts
    }

    /// Returns the ID of a string, adding the string if necessary. Returns `None` if the size limit is reached.
    pub fn intern(&mut self, text: &[u8]) -> Option<TextId> {
        let id = match self.texts.get_index_of(text) {
            Some(id) => id,
            None => {
                // 112 bytes cover the allocation, a list entry and an entry in a hash table that grows by doubling.
                self.bytes += text.len() + 112;
                if self.bytes > MAX_BYTES {
                    return None;
                }
                self.texts.insert_full(text.into()).0
            }
        };
        TextId::try_from(id).ok()
    }

    pub fn memory(&self) -> usize {
        self.bytes
    }

    pub fn get(&self, id: TextId) -> &[u8] {
        self.texts.get_index(id as usize).map_or(&[], |text| text)
    }
}
