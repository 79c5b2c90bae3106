//! Enums whose variants have a text each.

/// Defines an enum with one or two texts for each variant, and the methods that return them.
#[macro_export]
macro_rules! named {
    (
        $(#[$meta:meta])*
        $vis:vis enum $name:ident { $($(#[$variant_meta:meta])* $variant:ident = $text:literal,)* }
        $(#[$doc:meta])*
        fn $method:ident;
    ) => {
        $(#[$meta])*
        $vis enum $name { $($(#[$variant_meta])* $variant,)* }

        impl $name {
            $(#[$doc])*
            $vis const fn $method(self) -> &'static str {
                match self { $(Self::$variant => $text,)* }
            }
        }
    };
    (
        $(#[$meta:meta])*
        $vis:vis enum $name:ident { $($(#[$variant_meta:meta])* $variant:ident = $text:literal, $other:literal,)* }
        $(#[$doc:meta])*
        fn $method:ident;
        $(#[$other_doc:meta])*
        fn $other_method:ident;
    ) => {
        $crate::named! {
            $(#[$meta])*
            $vis enum $name { $($(#[$variant_meta])* $variant = $text,)* }
            $(#[$doc])*
            fn $method;
        }

        impl $name {
            $(#[$other_doc])*
            $vis const fn $other_method(self) -> &'static str {
                match self { $(Self::$variant => $other,)* }
            }
        }
    };
}
