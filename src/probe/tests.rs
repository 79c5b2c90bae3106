//! The parent against children of every kind, and the policies on a card made of numbers.
