//! Return codes: NVML's, by the name of the constant or as a number, which may be one that NVML does not define.

use std::ffi::CStr;

use serde::{Deserialize, Deserializer, de};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Code(pub u32);

macro_rules! codes {
    ($($constant:ident $number:literal $name:literal $text:literal,)*) => {
        impl Code {
            $(pub const $constant: Self = Self($number);)*
        }

        /// Code, name in a scenario, and the text of `nvmlErrorString`.
        const CODES: &[(Code, &str, &CStr)] = &[$((Code::$constant, $name, $text),)*];
    };
}

codes! {
    OK 0 "ok" c"Success",
    UNINITIALIZED 1 "uninitialized" c"Uninitialized",
    INVALID_ARGUMENT 2 "invalid_argument" c"Invalid Argument",
    NOT_SUPPORTED 3 "not_supported" c"Not Supported",
    NO_PERMISSION 4 "no_permission" c"Insufficient Permissions",
    ALREADY_INITIALIZED 5 "already_initialized" c"Already Initialized",
    NOT_FOUND 6 "not_found" c"Not Found",
    INSUFFICIENT_SIZE 7 "insufficient_size" c"Insufficient Size",
    INSUFFICIENT_POWER 8 "insufficient_power" c"Insufficient External Power",
    DRIVER_NOT_LOADED 9 "driver_not_loaded" c"Driver Not Loaded",
    TIMEOUT 10 "timeout" c"Timeout",
    IRQ_ISSUE 11 "irq_issue" c"Interrupt Request Issue",
    LIBRARY_NOT_FOUND 12 "library_not_found" c"NVML Shared Library Not Found",
    FUNCTION_NOT_FOUND 13 "function_not_found" c"Function Not Found",
    CORRUPTED_INFOROM 14 "corrupted_inforom" c"Corrupted infoROM",
    GPU_IS_LOST 15 "gpu_is_lost" c"GPU is lost",
    RESET_REQUIRED 16 "reset_required" c"GPU requires restart",
    OPERATING_SYSTEM 17 "operating_system" c"The operating system has blocked the request.",
    LIB_RM_VERSION_MISMATCH 18 "library_rm_version_mismatch" c"RM has detected an NVML/RM version mismatch.",
    IN_USE 19 "in_use" c"In use by another client",
    MEMORY 20 "memory" c"Insufficient Memory",
    NO_DATA 21 "no_data" c"No data",
    INSUFFICIENT_RESOURCES 23 "insufficient_resources" c"Insufficient Resources",
    ARGUMENT_VERSION_MISMATCH 25 "argument_version_mismatch" c"Argument version mismatch",
    DEPRECATED 26 "deprecated" c"Deprecated",
    NOT_READY 27 "not_ready" c"Not ready",
    GPU_NOT_FOUND 28 "gpu_not_found" c"GPU not found",
    INVALID_STATE 29 "invalid_state" c"Invalid state",
    UNKNOWN 999 "unknown" c"Unknown Error",
}

impl Code {
    pub fn text(self) -> &'static CStr {
        CODES.iter().find(|(code, ..)| *code == self).map_or(c"Unknown Error", |(_, _, text)| text)
    }

    fn named(name: &str) -> Option<Self> {
        let name = match name {
            "mismatch" => "library_rm_version_mismatch",
            other => other,
        };
        CODES.iter().find(|(_, n, _)| *n == name).map(|(code, ..)| *code)
    }
}

impl<'de> Deserialize<'de> for Code {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Form {
            Number(u32),
            Name(String),
        }
        match Form::deserialize(deserializer)? {
            Form::Number(code) => Ok(Self(code)),
            Form::Name(name) => Self::named(&name)
                .ok_or_else(|| de::Error::custom(format!("no NVML error is called {name:?}"))),
        }
    }
}
