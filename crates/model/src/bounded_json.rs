//! Reads untrusted JSON within a memory limit.
//!
//! An element `{}` takes three bytes as text but two kilobytes as a [`Gpu`](super::gpu::Gpu), so the text length says
//! little about the memory needed to read it. [`read`] therefore wraps the deserializer and subtracts the size of the
//! Rust type of every list element and map entry from a budget. It rejects the text when the budget is exceeded. No
//! field needs an annotation, so none can be forgotten.
//!
//! Strings are charged by length, because showing a long string requires several copies of it. `serde_json` itself
//! limits nesting to 128 levels.

use std::cell::Cell;
use std::fmt;
use std::marker::PhantomData;

use serde::de::{
    Deserialize, DeserializeSeed, Deserializer, EnumAccess, Error, MapAccess, SeqAccess,
    VariantAccess, Visitor,
};

/// Memory budget left while reading JSON.
#[derive(Debug)]
struct Budget {
    left: Cell<usize>,
    is_exceeded: Cell<bool>,
    max_bytes: usize,
}

impl Budget {
    fn charge<E: Error>(&self, bytes: usize) -> Result<(), E> {
        match self.left.get().checked_sub(bytes) {
            Some(left) if !self.is_exceeded.get() => {
                self.left.set(left);
                Ok(())
            }
            _ => {
                self.is_exceeded.set(true);
                Err(self.refusal())
            }
        }
    }

    fn refusal<E: Error>(&self) -> E {
        E::custom(format_args!(
            "its lists and strings need more than {} MiB of memory",
            self.max_bytes >> 20
        ))
    }
}

/// Reads a JSON value whose lists and maps may take up to `max_bytes` of memory. Returns the value and the number of
/// bytes charged.
pub fn read<'de, T: Deserialize<'de>>(
    json: &'de [u8],
    max_bytes: usize,
) -> serde_json::Result<(T, usize)> {
    let budget = Budget { left: Cell::new(max_bytes), is_exceeded: Cell::new(false), max_bytes };
    let mut json = serde_json::Deserializer::from_slice(json);
    let value =
        T::deserialize(Metered { inner: &mut json, budget: &budget, charges_entries: true })?;
    json.end()?;
    // Check the budget even if parsing succeeded, because a `Reading` turns an error in a nested list into a missing
    // value.
    if budget.is_exceeded.get() {
        return Err(budget.refusal());
    }
    Ok((value, max_bytes - budget.left.get()))
}

/// Reads a JSON list of at most `MAX` elements. Used as a field's `deserialize_with`.
pub fn list<'de, T, D, const MAX: usize>(deserializer: D) -> Result<Vec<T>, D::Error>
where
    T: Deserialize<'de>,
    D: Deserializer<'de>,
{
    struct List<T, const MAX: usize>(PhantomData<T>);

    impl<'de, T: Deserialize<'de>, const MAX: usize> Visitor<'de> for List<T, MAX> {
        type Value = Vec<T>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(f, "a list of at most {MAX} elements")
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Vec<T>, A::Error> {
            let mut list = Vec::new();
            while let Some(element) = seq.next_element()? {
                if list.len() == MAX {
                    return Err(A::Error::invalid_length(MAX + 1, &self));
                }
                list.push(element);
            }
            Ok(list)
        }
    }

    deserializer.deserialize_seq(List::<T, MAX>(PhantomData))
}

/// Wraps a serde type and charges what it reads to the memory budget.
struct Metered<'b, T> {
    inner: T,
    budget: &'b Budget,
    /// False for struct fields, which are charged as part of the struct.
    charges_entries: bool,
}

impl<'b, T> Metered<'b, T> {
    fn wrap<U>(&self, inner: U) -> Metered<'b, U> {
        Metered { inner, budget: self.budget, charges_entries: self.charges_entries }
    }
}

macro_rules! forward_deserialize {
    ($charges:literal: $($method:ident($($argument:ident: $type:ty),*),)*) => {
        $(fn $method<V: Visitor<'de>>(self, $($argument: $type,)* visitor: V) -> Result<V::Value, D::Error> {
            let visitor = Metered {
                inner: visitor,
                budget: self.budget,
                charges_entries: $charges,
            };
            self.inner.$method($($argument,)* visitor)
        })*
    };
}

impl<'de, D: Deserializer<'de>> Deserializer<'de> for Metered<'_, D> {
    type Error = D::Error;

    forward_deserialize! { true:
        deserialize_any(), deserialize_bool(), deserialize_char(), deserialize_str(), deserialize_string(),
        deserialize_i8(), deserialize_i16(), deserialize_i32(), deserialize_i64(), deserialize_i128(),
        deserialize_u8(), deserialize_u16(), deserialize_u32(), deserialize_u64(), deserialize_u128(),
        deserialize_f32(), deserialize_f64(), deserialize_bytes(), deserialize_byte_buf(), deserialize_option(),
        deserialize_unit(), deserialize_unit_struct(name: &'static str), deserialize_newtype_struct(name: &'static str),
        deserialize_seq(), deserialize_tuple(len: usize), deserialize_tuple_struct(name: &'static str, len: usize),
        deserialize_map(), deserialize_enum(name: &'static str, variants: &'static [&'static str]),
        deserialize_identifier(), deserialize_ignored_any(),
    }
    forward_deserialize! { false:
        deserialize_struct(name: &'static str, fields: &'static [&'static str]),
    }

    fn is_human_readable(&self) -> bool {
        self.inner.is_human_readable()
    }
}

macro_rules! forward_visit {
    ($($method:ident: $type:ty;)*) => {
        $(fn $method<E: Error>(self, value: $type) -> Result<V::Value, E> {
            self.inner.$method(value)
        })*
    };
}

macro_rules! wrap_visit {
    ($($method:ident: $access:ident;)*) => {
        $(fn $method<A: $access<'de>>(self, access: A) -> Result<V::Value, A::Error> {
            let access = self.wrap(access);
            self.inner.$method(access)
        })*
    };
}

impl<'de, V: Visitor<'de>> Visitor<'de> for Metered<'_, V> {
    type Value = V::Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.expecting(f)
    }

    // By default, the methods of shorter numbers, of owned text and of other bytes call one of these.
    forward_visit! {
        visit_bool: bool;
        visit_i64: i64;
        visit_i128: i128;
        visit_u64: u64;
        visit_u128: u128;
        visit_f64: f64;
        visit_bytes: &[u8];
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<V::Value, E> {
        self.budget.charge(text.len())?;
        self.inner.visit_str(text)
    }

    fn visit_borrowed_str<E: Error>(self, text: &'de str) -> Result<V::Value, E> {
        self.budget.charge(text.len())?;
        self.inner.visit_borrowed_str(text)
    }

    fn visit_none<E: Error>(self) -> Result<V::Value, E> {
        self.inner.visit_none()
    }

    fn visit_unit<E: Error>(self) -> Result<V::Value, E> {
        self.inner.visit_unit()
    }

    wrap_visit! {
        visit_some: Deserializer;
        visit_newtype_struct: Deserializer;
        visit_seq: SeqAccess;
        visit_map: MapAccess;
        visit_enum: EnumAccess;
    }
}

impl<'de, S: DeserializeSeed<'de>> DeserializeSeed<'de> for Metered<'_, S> {
    type Value = S::Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<S::Value, D::Error> {
        let deserializer = self.wrap(deserializer);
        self.inner.deserialize(deserializer)
    }
}

impl<'de, A: SeqAccess<'de>> SeqAccess<'de> for Metered<'_, A> {
    type Error = A::Error;

    fn next_element_seed<S: DeserializeSeed<'de>>(
        &mut self,
        seed: S,
    ) -> Result<Option<S::Value>, A::Error> {
        let seed = self.wrap(seed);
        let element = self.inner.next_element_seed(seed)?;
        if element.is_some() {
            self.budget.charge(size_of::<S::Value>())?;
        }
        Ok(element)
    }

    fn size_hint(&self) -> Option<usize> {
        self.inner.size_hint()
    }
}

impl<'de, A: MapAccess<'de>> MapAccess<'de> for Metered<'_, A> {
    type Error = A::Error;

    fn next_key_seed<S: DeserializeSeed<'de>>(
        &mut self,
        seed: S,
    ) -> Result<Option<S::Value>, A::Error> {
        let seed = self.wrap(seed);
        let key = self.inner.next_key_seed(seed)?;
        if key.is_some() && self.charges_entries {
            self.budget.charge(size_of::<S::Value>())?;
        }
        Ok(key)
    }

    fn next_value_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<S::Value, A::Error> {
        if self.charges_entries {
            self.budget.charge(size_of::<S::Value>())?;
        }
        let seed = self.wrap(seed);
        self.inner.next_value_seed(seed)
    }

    fn size_hint(&self) -> Option<usize> {
        self.inner.size_hint()
    }
}

impl<'b, 'de, A: EnumAccess<'de>> EnumAccess<'de> for Metered<'b, A> {
    type Error = A::Error;
    type Variant = Metered<'b, A::Variant>;

    fn variant_seed<S: DeserializeSeed<'de>>(
        self,
        seed: S,
    ) -> Result<(S::Value, Self::Variant), A::Error> {
        let seed = self.wrap(seed);
        let (budget, charges_entries) = (self.budget, self.charges_entries);
        let (value, inner) = self.inner.variant_seed(seed)?;
        let variant = Metered { inner, budget, charges_entries };
        Ok((value, variant))
    }
}

impl<'de, A: VariantAccess<'de>> VariantAccess<'de> for Metered<'_, A> {
    type Error = A::Error;

    fn unit_variant(self) -> Result<(), A::Error> {
        self.inner.unit_variant()
    }

    fn newtype_variant_seed<S: DeserializeSeed<'de>>(self, seed: S) -> Result<S::Value, A::Error> {
        let seed = self.wrap(seed);
        self.inner.newtype_variant_seed(seed)
    }

    fn tuple_variant<V: Visitor<'de>>(self, len: usize, visitor: V) -> Result<V::Value, A::Error> {
        let visitor = self.wrap(visitor);
        self.inner.tuple_variant(len, visitor)
    }

    fn struct_variant<V: Visitor<'de>>(
        self,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, A::Error> {
        let visitor = self.wrap(visitor);
        self.inner.struct_variant(fields, visitor)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use serde_json::value::RawValue;

    use super::*;
    use crate::frame::Frame;

    const MIB: usize = 1 << 20;

    fn refused<T: for<'de> Deserialize<'de>>(json: &str) -> bool {
        match read::<T>(json.as_bytes(), MIB) {
            Ok(_) => false,
            Err(error) => error.to_string().contains("more than 1 MiB of memory"),
        }
    }

    #[test]
    fn refuses_lists_maps_and_trees_that_grow_beyond_the_limit() {
        let many = |element: &str| [element; 100_000].join(",");
        let processes = format!(r#"{{"processes":{{"list":[{}]}}}}"#, many("{}"));
        assert!(refused::<Frame>(&processes));
        // Lists inside a `Reading` are charged too, although a `Reading` turns an error in a list into a missing value.
        let throttle = many(r#""idle""#);
        let text = format!(r#"{{"gpus":[{{"processes":[{}]}}]}}"#, many("{}"));
        assert!(refused::<Frame>(&text));
        assert!(!refused::<Frame>(&format!(r#"{{"gpus":[{{"throttle":[{throttle}]}}]}}"#)));
        assert!(refused::<Vec<String>>(&format!("[{}]", many(r#""""#))));
        assert!(refused::<serde_json::Value>(&format!("[{}]", many("[]"))));
        let entries: Vec<String> = (0..100_000).map(|n| format!(r#""{n}":0"#)).collect();
        let entries = entries.join(",");
        assert!(refused::<HashMap<String, u64>>(&format!("{{{entries}}}")));
        // Ignored values are not charged.
        assert!(!refused::<Frame>(&format!(r#"{{"later":[{}]}}"#, many("{}"))));
        assert!(!refused::<Box<RawValue>>(&format!("[{}]", many("{}"))));
    }

    #[test]
    fn refuses_more_gpus_than_the_maximum() {
        let text = format!(r#"{{"gpus":[{}]}}"#, ["{}"; 257].join(","));
        let error = read::<Frame>(text.as_bytes(), 64 * MIB).expect_err("an error");
        let expected = "invalid length 257, expected a list of at most 256 elements";
        assert!(error.to_string().starts_with(expected), "{error}");
        let text = format!(r#"{{"gpus":[{}]}}"#, ["{}"; 256].join(","));
        assert!(read::<Frame>(text.as_bytes(), 64 * MIB).is_ok());
    }

    #[test]
    fn reads_what_serde_json_reads() {
        let text = r#"{"seq":7,"gpus":[{"index":1,"sm":{"missing":"denied"},"throttle":["idle"],
            "processes":[{"pid":418,"vram":5}],"memory":{"total":8}}],"host":{"load":[0.5]}}"#;
        let (frame, bytes) = read::<Frame>(text.as_bytes(), MIB).expect("a frame");
        assert_eq!(frame, serde_json::from_str(text).expect("a frame"));
        assert!(bytes > 1_000, "{bytes}");
        let (numbers, _) = read::<HashMap<u32, bool>>(br#"{"12":true}"#, MIB).expect("a map");
        assert!(numbers[&12]);
        assert!(read::<Frame>(b"{} {}", MIB).is_err());
    }
}
