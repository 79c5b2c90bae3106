//! Tests of explanations: each card with its examples, and logs that need several cards.
#![allow(clippy::unwrap_used)]

mod cards;
mod first_fix;
mod fragmentation;
mod ordinary_exceptions;
mod server_advice;
