//! The symbols of the table of numbers (`scenario/number.rs`).

use std::ffi::c_uint;

macro_rules! symbols {
    (; $($call:ident $number:ident = $value:literal: $symbol:ident,)*) => {
        values! { $($symbol: $call -> c_uint = |target| Ok(target.gpu().$number);)* }
    };
}

numbers! { symbols! }
