//! A frame as JSON, schema 1: the field names of the model, sizes in bytes, absence as its reason.

use serde::Serialize;

use crate::model::frame::{Frame, SCHEMA};
use crate::model::host::Hello;

#[derive(Serialize)]
struct Document<'a> {
    schema: u32,
    host_name: &'a str,
    boot_id: &'a str,
    #[serde(flatten)]
    frame: &'a Frame,
}

/// One document, indented, with a line end.
///
/// # Errors
/// None that a frame can cause: it is plain data.
pub fn frame(hello: &Hello, frame: &Frame) -> serde_json::Result<String> {
    let document = Document {
        schema: SCHEMA,
        host_name: &hello.host,
        boot_id: &hello.boot_id,
        frame,
    };
    Ok(serde_json::to_string_pretty(&document)? + "\n")
}
