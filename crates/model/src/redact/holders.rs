//! Redacts and escapes the names of tensors that hold GPU memory, because dictionary keys in these names may be
//! secrets.

use super::free_text::text;
use crate::holders::Holders;
use crate::text::visible;

const MAX_NAME_CHARS: usize = 200;
const MAX_REFERENCE_CHARS: usize = 80;
const MAX_DTYPE_CHARS: usize = 40;

/// Redacts, escapes and shortens all text that the observed program can influence.
pub fn holders(holders: &mut Holders) {
    for group in &mut holders.groups {
        clean(&mut group.name, MAX_NAME_CHARS);
        for tensor in &mut group.tensors {
            clean(&mut tensor.name, MAX_NAME_CHARS);
            clean(&mut tensor.dtype, MAX_DTYPE_CHARS);
            for reference in &mut tensor.path {
                clean(reference, MAX_REFERENCE_CHARS);
            }
            for alias in &mut tensor.aliases {
                clean(alias, MAX_NAME_CHARS);
            }
        }
    }
}

fn clean(name: &mut String, max_chars: usize) {
    *name = visible(&text(name.as_bytes()), max_chars);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::holders::{HeldTensor, HolderGroup};

    #[test]
    fn secrets_and_control_characters_are_removed_from_names() {
        let cleaned = |name: &str| {
            let tensor = HeldTensor {
                name: name.into(),
                path: vec![name.into()],
                aliases: vec![name.into()],
                ..HeldTensor::default()
            };
            let mut reading = Holders {
                groups: vec![HolderGroup {
                    name: name.into(),
                    tensors: vec![tensor],
                    ..HolderGroup::default()
                }],
                ..Holders::default()
            };
            holders(&mut reading);
            let group = &reading.groups[0];
            let tensor = &group.tensors[0];
            assert_eq!([&tensor.path[0], &tensor.aliases[0], &group.name], [&tensor.name; 3]);
            tensor.name.clone()
        };
        for name in [
            "trainer.history[*]",
            "opt.state[model.layers.*.weight]['exp_avg']",
            "token_cache['step_*']",
            "model.key.weight",
        ] {
            assert_eq!(cleaned(name), name);
        }
        let secret = "cache['hf_0123456789abcdefghijABCDEFGHIJ']";
        assert_eq!(cleaned(secret), "cache['***']");
        assert_eq!(cleaned("a['\u{1b}[2J']"), "a['^[[2J']");
    }
}
