//! Estimates how much memory a value takes, without a list of its fields.
//!
//! This is the counterpart of [`bounded_json`](super::bounded_json): a serializer that writes nothing, and adds up the
//! lengths of all strings and the number of all fields, list elements and map entries. No field needs an annotation, so
//! none can be forgotten.

use std::fmt::{self, Display, Write};

use serde::Serialize;
use serde::ser::{
    SerializeMap, SerializeSeq, SerializeStruct, SerializeStructVariant, SerializeTuple,
    SerializeTupleStruct, SerializeTupleVariant, Serializer,
};

/// Size counted for each number and string, and for each field that is left out because it has no value. The average of
/// the fields of a frame.
const VALUE_BYTES: usize = 16;

/// Returns the approximate memory of a value in bytes, including its strings, lists and maps.
pub fn of<T: Serialize>(value: &T) -> usize {
    let mut size = CountedBytes(0);
    // A value that cannot be serialized has the size up to that point.
    let _ = value.serialize(&mut size);
    size.0
}

/// Number of bytes counted so far.
struct CountedBytes(usize);

impl CountedBytes {
    fn value(&mut self) {
        self.0 += VALUE_BYTES;
    }
}

impl Write for CountedBytes {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.0 += text.len();
        Ok(())
    }
}

macro_rules! count_value {
    ($($method:ident($($type:ty),*),)*) => {
        $(fn $method(self, $(_: $type),*) -> fmt::Result {
            self.value();
            Ok(())
        })*
    };
}

macro_rules! count_content {
    ($($method:ident($($type:ty),*),)*) => {
        $(fn $method(self, $(_: $type),*) -> Result<Self, fmt::Error> {
            Ok(self)
        })*
    };
}

impl Serializer for &mut CountedBytes {
    type Ok = ();
    type Error = fmt::Error;
    type SerializeSeq = Self;
    type SerializeTuple = Self;
    type SerializeTupleStruct = Self;
    type SerializeTupleVariant = Self;
    type SerializeMap = Self;
    type SerializeStruct = Self;
    type SerializeStructVariant = Self;

    count_value! {
        serialize_bool(bool), serialize_char(char),
        serialize_i8(i8), serialize_i16(i16), serialize_i32(i32), serialize_i64(i64), serialize_i128(i128),
        serialize_u8(u8), serialize_u16(u16), serialize_u32(u32), serialize_u64(u64), serialize_u128(u128),
        serialize_f32(f32), serialize_f64(f64), serialize_unit(), serialize_none(),
        serialize_unit_struct(&'static str), serialize_unit_variant(&'static str, u32, &'static str),
    }

    count_content! {
        serialize_seq(Option<usize>), serialize_tuple(usize), serialize_tuple_struct(&'static str, usize),
        serialize_tuple_variant(&'static str, u32, &'static str, usize), serialize_map(Option<usize>),
        serialize_struct(&'static str, usize), serialize_struct_variant(&'static str, u32, &'static str, usize),
    }

    fn serialize_str(self, text: &str) -> fmt::Result {
        self.value();
        self.write_str(text)
    }

    fn serialize_bytes(self, bytes: &[u8]) -> fmt::Result {
        self.value();
        self.0 += bytes.len();
        Ok(())
    }

    fn collect_str<T: ?Sized + Display>(self, value: &T) -> fmt::Result {
        self.value();
        write!(self, "{value}")
    }

    fn serialize_some<T: ?Sized + Serialize>(self, value: &T) -> fmt::Result {
        value.serialize(self)
    }

    fn serialize_newtype_struct<T: ?Sized + Serialize>(
        self,
        _: &'static str,
        value: &T,
    ) -> fmt::Result {
        value.serialize(self)
    }

    fn serialize_newtype_variant<T: ?Sized + Serialize>(
        self,
        _: &'static str,
        _: u32,
        _: &'static str,
        value: &T,
    ) -> fmt::Result {
        value.serialize(self)
    }
}

macro_rules! count_parts {
    ($($trait:ident { $($method:ident($($name:ty)?),)* })*) => {
        $(impl $trait for &mut CountedBytes {
            type Ok = ();
            type Error = fmt::Error;

            $(fn $method<T: ?Sized + Serialize>(&mut self, $(_: $name,)? value: &T) -> fmt::Result {
                value.serialize(&mut **self)
            })*

            fn end(self) -> fmt::Result {
                Ok(())
            }
        })*
    };
}

count_parts! {
    SerializeSeq { serialize_element(), }
    SerializeTuple { serialize_element(), }
    SerializeTupleStruct { serialize_field(), }
    SerializeTupleVariant { serialize_field(), }
    SerializeMap { serialize_key(), serialize_value(), }
    SerializeStructVariant { serialize_field(&'static str), }
}

impl SerializeStruct for &mut CountedBytes {
    type Ok = ();
    type Error = fmt::Error;

    fn serialize_field<T: ?Sized + Serialize>(
        &mut self,
        _: &'static str,
        value: &T,
    ) -> fmt::Result {
        value.serialize(&mut **self)
    }

    fn skip_field(&mut self, _: &'static str) -> fmt::Result {
        self.value();
        Ok(())
    }

    fn end(self) -> fmt::Result {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::bounded_json;
    use crate::event::Event;
    use crate::frame::Frame;

    #[test]
    fn counts_strings_list_elements_and_map_entries() {
        assert_eq!(of(&"x".repeat(1_000)), VALUE_BYTES + 1_000);
        assert_eq!(of(&vec![0_u64; 100]), 100 * VALUE_BYTES);
        assert_eq!(of(&BTreeMap::from([(1_u32, "ab")])), 2 * VALUE_BYTES + 2);
    }

    /// The memory of an update in a queue is about what it was allowed to take when it was read.
    #[test]
    fn agrees_with_the_memory_charged_for_reading() {
        let check = |list: &str, text: String| {
            let (frame, charged) =
                bounded_json::read::<Frame>(text.as_bytes(), 64 << 20).expect("a frame");
            let size = of(&frame);
            assert!(size > charged / 2 && size < charged * 2, "{list}: {size} and {charged}");
        };
        let many = |element: &str, count| vec![element; count].join(",");
        check("GPUs", format!(r#"{{"gpus":[{}]}}"#, many("{}", 250)));
        check("processes", format!(r#"{{"processes":{{"list":[{}]}}}}"#, many("{}", 2_000)));
        check("pools", format!(r#"{{"pools":{{"list":[{}]}}}}"#, many("{}", 2_000)));
        check(
            "processes of a GPU",
            format!(r#"{{"gpus":[{{"processes":[{}]}}]}}"#, many("{}", 20_000)),
        );
        let log = format!(r#"{{"observation":{{"kind":"log","text":"{}"}}}}"#, "x".repeat(100_000));
        let (event, charged) =
            bounded_json::read::<Event>(log.as_bytes(), 1 << 20).expect("an event");
        let size = of(&event);
        assert!((100_000..charged + 2_000).contains(&size), "{size} and {charged}");
    }
}
