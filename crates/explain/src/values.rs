//! Computes values for fixes from the numbers in a log. Cards refer to these values by name.

use std::sync::LazyLock;

use gputop_model::units::Bytes;

use super::fields::{self, FieldMap};
use super::signature::Pattern;

/// GPU memory in bytes to leave free for the context and for other programs.
const MARGIN: u64 = 512 << 20;
/// Share of GPU memory that vLLM and SGLang reserve by default.
const DEFAULT_SHARE: f64 = 0.9;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ComputedValue {
    pub text: String,
    pub formula: String,
}

struct FormulaInput<'a> {
    found: &'a FieldMap,
    /// Text around the error, and the start of the log.
    texts: [&'a str; 2],
}

type Formula = fn(&FormulaInput<'_>) -> Option<ComputedValue>;

const FORMULAS: &[(&str, Formula)] = &[
    ("free-share", free_share),
    ("smaller-share", smaller_share),
    ("larger-share", larger_share),
    ("raised-share", raised_share),
    ("fitting-length", fitting_length),
    ("model-context", model_context),
    ("longer-context", longer_context),
    ("fitting-layers", fitting_layers),
    ("half-of-setting", half_of_setting),
    ("dividing-size", dividing_size),
    ("library-wheel", library_wheel),
    ("cudnn-wheel", cudnn_wheel),
    ("system-package", system_package),
    ("class-count", class_count),
    ("torch-index", torch_index),
];

/// Computes the value `name`. Returns `None` if the log does not contain the required numbers.
#[must_use]
pub fn value(name: &str, found: &FieldMap, text: &str, start: &str) -> Option<ComputedValue> {
    let input = FormulaInput { found, texts: [text, start] };
    FORMULAS.iter().find(|(known, _)| *known == name)?.1(&input)
}

/// Returns true if cards can refer to this name.
#[must_use]
pub fn is_known(name: &str) -> bool {
    FORMULAS.iter().any(|(known, _)| *known == name)
}

impl FormulaInput<'_> {
    fn figure(&self, name: &str) -> Option<u64> {
        if let Some(value) = self.found.get(name) {
            return value.as_u64().or_else(|| value.as_str()?.parse().ok());
        }
        // Fall back to the field in GiB, because some messages print the unit only once for several numbers.
        let gib = self.found.get(&format!("{}_gib", name.strip_suffix("_bytes")?))?;
        let gib: f64 = gib.as_f64().or_else(|| gib.as_str()?.parse().ok())?;
        fields::size(&format!("{gib} GiB"))
    }

    /// Returns the number in the group `value` of the first match of `pattern`.
    fn number(&self, pattern: &str) -> Option<f64> {
        let pattern = Pattern::new(pattern);
        let mut groups = self.texts.iter().filter_map(|text| pattern.groups(text));
        groups.find_map(|groups| groups.get("value")?.as_str()?.parse().ok())
    }

    /// Returns the share of GPU memory that the server was configured to reserve, from 0 to 1.
    fn share(&self) -> Option<f64> {
        let written = self.found.get("utilization");
        written.and_then(|v| v.as_f64().or_else(|| v.as_str()?.parse().ok())).or_else(|| {
            self.number(concat!(
                r#"(?:gpu[-_]memory[-_]utilization|mem[-_]fraction[-_]static|free_gpu_memory_fraction)["']?"#,
                r"[ =:(]{1,4}(?<value>0?\.\d+)"
            ))
        })
    }
}

/// Rounds a share of GPU memory down to two decimals, so that the reservation still fits.
fn rounded_down(share: f64) -> Option<String> {
    let share = (share * 100.0).floor() / 100.0;
    (0.05..=0.99).contains(&share).then(|| format!("{share:.2}"))
}

#[allow(clippy::cast_precision_loss)]
fn ratio(part: u64, whole: u64) -> Option<f64> {
    (whole > 0).then(|| part as f64 / whole as f64)
}

fn free_share(input: &FormulaInput<'_>) -> Option<ComputedValue> {
    let (free, total) = (input.figure("free_bytes")?, input.figure("total_bytes")?);
    let text = rounded_down(ratio(free.checked_sub(MARGIN)?, total)?)?;
    let (free, total, margin) = (Bytes(free), Bytes(total), gib(MARGIN));
    Some(ComputedValue {
        text,
        formula: format!("({free} free - {margin} margin) / {total} total"),
    })
}

/// Returns the current share of GPU memory to reserve, minus the missing memory and a margin.
fn smaller_share(input: &FormulaInput<'_>) -> Option<ComputedValue> {
    let (requested, total) = (input.figure("requested_bytes")?, input.figure("total_bytes")?);
    let free = input.figure("free_bytes")?;
    let now = input.share();
    let missing = requested.saturating_sub(free);
    let text = rounded_down(now.unwrap_or(DEFAULT_SHARE) - ratio(missing + MARGIN, total)?)?;
    let origin = if now.is_some() { "now" } else { "by default" };
    let now = now.unwrap_or(DEFAULT_SHARE);
    let (missing, margin, total) = (Bytes(missing), gib(MARGIN), Bytes(total));
    Some(ComputedValue {
        text,
        formula: format!("{now} {origin} - ({missing} missing + {margin} margin) / {total}"),
    })
}

/// Returns a larger share of GPU memory to reserve that still leaves a small margin.
fn larger_share(input: &FormulaInput<'_>) -> Option<ComputedValue> {
    let now = input.share().filter(|share| *share < 0.92)?;
    let text = "0.95".to_owned();
    Some(ComputedValue {
        text,
        formula: format!("the largest share that is usually safe; the current share is {now}"),
    })
}

fn raised_share(input: &FormulaInput<'_>) -> Option<ComputedValue> {
    const STEP: f64 = 0.05;
    let now = input.share().filter(|share| *share < 0.9)?;
    let text = format!("{:.2}", now + STEP);
    let formula = format!("{now} now + {STEP}");
    Some(ComputedValue { text, formula })
}

/// Returns the context length that fits into memory: the estimate in the log, or a value computed from the log's
/// numbers.
fn fitting_length(input: &FormulaInput<'_>) -> Option<ComputedValue> {
    let rounded = |length: u64| {
        if length > 1000 { length / 100 * 100 } else { length }
    };
    let length = input.figure("max_seq_len");
    if let Some(estimated) = input.figure("estimated_len").filter(|n| *n > 0) {
        return Some(ComputedValue {
            text: rounded(estimated).to_string(),
            formula: format!("the log's estimate of {estimated}, rounded down"),
        });
    }
    if let Some(tokens) = input.figure("kv_cache_tokens").filter(|n| *n > 0) {
        return Some(ComputedValue {
            text: rounded(tokens).to_string(),
            formula: format!("the {tokens} tokens that fit into the cache, rounded down"),
        });
    }
    let (needed, available) = (input.figure("needed_bytes")?, input.figure("available_bytes")?);
    let length = length.filter(|_| available < needed)?;
    let fits = u128::from(length) * u128::from(available) / u128::from(needed.max(1));
    let fits = rounded(u64::try_from(fits).ok()?);
    let (needed, available) = (Bytes(needed), Bytes(available));
    (fits > 0).then(|| ComputedValue {
        text: fits.to_string(),
        formula: format!("{length} x {available} available / {needed} needed"),
    })
}

/// Returns the longest context that the model supports.
fn model_context(input: &FormulaInput<'_>) -> Option<ComputedValue> {
    let limit = input.figure("limit_count")?;
    Some(ComputedValue { text: limit.to_string(), formula: "the model's own limit".to_owned() })
}

/// Returns a context length for the refused request and an answer: the next power of two with room for 1024 tokens.
fn longer_context(input: &FormulaInput<'_>) -> Option<ComputedValue> {
    const ANSWER: u64 = 1024;
    let tokens = input.figure("prompt_count").filter(|tokens| *tokens < 1 << 24)?;
    let length = (tokens + ANSWER).next_power_of_two();
    let formula = format!("{tokens} tokens of the request + {ANSWER} for the answer, rounded up");
    Some(ComputedValue { text: length.to_string(), formula })
}

/// Returns the number of layers to keep on the GPU. Moving the others to the CPU frees enough memory for the failed
/// request.
#[allow(clippy::cast_precision_loss)]
fn fitting_layers(input: &FormulaInput<'_>) -> Option<ComputedValue> {
    let requested = input.figure("requested_bytes")? as f64;
    let layers = input.number(
        r"offloaded (?<value>\d+)/\d+ layers to GPU|offloading (?<value_2>\d+) repeating layers",
    )?;
    let weights = input.number(r"CUDA\d (?:model )?buffer size = (?<value>[\d.]+) Mi?B")?;
    // With several GPUs, each GPU holds only a part of the offloaded layers.
    let has_several = Pattern::new(r"CUDA[1-9]\d? (?:model )?buffer size");
    if input.texts.iter().any(|text| has_several.groups(text).is_some()) {
        return None;
    }
    let layer = weights * 1_048_576.0 / layers.max(1.0);
    let fits = layers - (requested / layer).ceil() - 1.0;
    (fits >= 1.0).then(|| ComputedValue {
        text: format!("{fits}"),
        formula: format!(
            "{layers} now, minus {} layers of {:.0} MiB each to free the requested {:.0} MiB",
            layers - fits,
            layer / 1_048_576.0,
            requested / 1_048_576.0
        ),
    })
}

/// Returns half of the first batch size or similar limit found in the log.
fn half_of_setting(input: &FormulaInput<'_>) -> Option<ComputedValue> {
    let now = input.number(concat!(
        r"(?:max_num_seqs|max[-_]running[-_]requests|per_device_train_batch_size|micro_batch_size(?:_per_gpu)?",
        r#"|n_ubatch|max_batch_size|max_(?:batch_)?prefill_tokens)["']?[ =:]{1,16}(?<value>\d{1,6})\b"#,
        r"|(?:^|\s)(?:-ub|--ubatch-size|-b|--batch-size)[ =](?<value_2>\d{1,6})\b",
        r"|warming up sampler with (?<value_3>\d{1,6}) dummy requests"
    ))?;
    (now >= 2.0).then(|| ComputedValue {
        text: format!("{}", (now / 2.0).floor()),
        formula: format!("half of the current {now}"),
    })
}

/// Returns the wheel of the cuDNN version that the program was built for.
fn cudnn_wheel(input: &FormulaInput<'_>) -> Option<ComputedValue> {
    let needed = input.found.get("needed_version")?.as_str()?;
    let major: u32 = needed.split('.').next()?.parse().ok()?;
    let text = match major {
        // For CUDA 12, cuDNN 8 wheels exist only since 8.9.
        8 if !needed.starts_with("8.9") => format!("'nvidia-cudnn-cu11>={needed},<9'"),
        8 => format!("'nvidia-cudnn-cu12>={needed},<9'"),
        9.. => format!("'nvidia-cudnn-cu12>={needed}'"),
        _ => return None,
    };
    Some(ComputedValue { text, formula: format!("the program was compiled with cuDNN {needed}") })
}

/// Returns the number of classes that the labels in the log require.
fn class_count(input: &FormulaInput<'_>) -> Option<ComputedValue> {
    let largest = input.texts.iter().find_map(|text| largest_label(text))?;
    let formula = format!("the largest label in the log is {largest}");
    Some(ComputedValue { text: (largest + 1).to_string(), formula })
}

/// Returns PyTorch's package index for a CUDA version that the driver supports. A driver supports all minor versions
/// of a CUDA release from its own on (NVIDIA, "CUDA Compatibility").
fn torch_index(input: &FormulaInput<'_>) -> Option<ComputedValue> {
    let supported = input.figure("found_version")?;
    let text = match supported {
        11_000..12_000 => "cu118",
        12_000..13_000 => "cu126",
        13_000..14_000 => "cu130",
        _ => return None,
    };
    let formula = format!("the driver supports CUDA {}.x", supported / 1000);
    Some(ComputedValue { text: text.to_owned(), formula })
}

/// Returns the largest power of two that is below the current parallel size and divides the number of attention heads.
fn dividing_size(input: &FormulaInput<'_>) -> Option<ComputedValue> {
    let divided = input.figure("heads").map(|heads| (heads, "attention heads"));
    let (size, name) = divided.or_else(|| Some((input.figure("dimension")?, "parts")))?;
    let now = input.figure("parallel_size")?;
    let powers = (0..16).rev().map(|exponent| 1_u64 << exponent);
    let fits = powers.filter(|power| *power < now).find(|power| size % power == 0)?;
    Some(ComputedValue {
        text: fits.to_string(),
        formula: format!("the largest power of two below {now} that divides {size} {name}"),
    })
}

/// Prefix of a library's name, name of its wheel, and pairs of library version and CUDA version.
type Wheel = (&'static str, &'static str, &'static [(u32, u32)]);

/// Returns the package of Debian and Ubuntu that contains the missing library.
fn system_package(input: &FormulaInput<'_>) -> Option<ComputedValue> {
    const PACKAGES: &[(&str, &str)] = &[
        ("libnuma.so", "libnuma1"),
        ("libibverbs.so", "libibverbs1"),
        ("librdmacm.so", "librdmacm1"),
        ("libGL.so", "libgl1"),
        ("libEGL.so", "libegl1"),
        ("libOpenGL.so", "libopengl0"),
        ("libgthread-2.0.so", "libglib2.0-0"),
        ("libglib-2.0.so", "libglib2.0-0"),
        ("libSM.so", "libsm6"),
        ("libXext.so", "libxext6"),
        ("libXrender.so", "libxrender1"),
        ("libgomp.so", "libgomp1"),
        ("libsndfile.so", "libsndfile1"),
    ];
    let library = input.found.get("library")?.as_str()?;
    let (_, package) = PACKAGES.iter().find(|(name, _)| library.starts_with(name))?;
    Some(ComputedValue {
        text: (*package).to_owned(),
        formula: format!("the package with {library} in Debian and Ubuntu"),
    })
}

/// Returns the PyPI wheel that contains a CUDA library.
fn library_wheel(input: &FormulaInput<'_>) -> Option<ComputedValue> {
    // The number after `.so` is the library's own version if this table lists versions for it. Otherwise, it is the
    // CUDA version.
    const WHEELS: &[Wheel] = &[
        ("libcudart", "cuda-runtime", &[]),
        ("libcublas", "cublas", &[]),
        ("libnvrtc", "cuda-nvrtc", &[]),
        ("libcupti", "cuda-cupti", &[]),
        ("libnvJitLink", "nvjitlink", &[]),
        ("libcufft", "cufft", &[(10, 11), (11, 12), (12, 13)]),
        ("libcusparseLt", "cusparselt", &[(0, 12)]),
        ("libcusparse", "cusparse", &[(11, 11), (12, 12)]),
        ("libcusolver", "cusolver", &[(11, 12), (12, 13)]),
        ("libcurand", "curand", &[(10, 12)]),
        ("libcudnn", "cudnn", &[(8, 11), (9, 12)]),
        ("libnccl", "nccl", &[(2, 12)]),
        ("libcufile", "cufile", &[(0, 12)]),
        ("libnvshmem", "nvshmem", &[(3, 12)]),
        ("libnvToolsExt", "nvtx", &[(1, 12)]),
    ];
    let library = input.found.get("library")?.as_str()?;
    let (_, wheel, versions) = WHEELS.iter().find(|(name, ..)| library.starts_with(name))?;
    let own = library.split_once(".so.").map_or("", |(_, version)| version);
    let own = own.split('.').next().and_then(|major| major.parse().ok());
    let cuda = match versions {
        [] => own.unwrap_or(12),
        versions => {
            versions.iter().find(|(number, _)| Some(*number) == own).map_or(12, |(_, cuda)| *cuda)
        }
    };
    // Since CUDA 13, the names of the CUDA toolkit's wheels have no suffix.
    let is_toolkit = !["cudnn", "nccl", "cusparselt", "nvshmem"].contains(wheel);
    let suffix = if cuda >= 13 && is_toolkit { String::new() } else { format!("-cu{cuda}") };
    let name = format!("nvidia-{wheel}{suffix}");
    // The newest wheels of every name contain cuDNN 9.
    let is_old = *wheel == "cudnn" && own == Some(8);
    Some(ComputedValue {
        text: if is_old { format!("\"{name}<9\"") } else { name },
        formula: format!("the wheel that contains {library}"),
    })
}

fn gib(bytes: u64) -> String {
    format!("{:.2} GiB", ratio(bytes, 1 << 30).unwrap_or_default())
}

/// Returns the largest label in a list of distinct labels that the program printed, such as `unique: [0, 1, 4]`.
#[must_use]
pub(super) fn largest_label(text: &str) -> Option<u64> {
    static LIST: LazyLock<Pattern> = LazyLock::new(|| {
        Pattern::new(concat!(
            r"(?i)\b(?:unique|distinct|label values|mask values|class ids)\b[^\n]{0,60}?",
            r"[\[({] ?(?<labels>\d+\.?(?:,? +\d+\.?){0,300}) ?[\])}]"
        ))
    });
    let found = LIST.groups(text)?;
    let labels = found.get("labels")?.as_str()?;
    labels.split([',', ' ', '.']).filter_map(|label| label.parse().ok()).max()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(name: &str, fields: &[(&str, u64)], text: &str) -> Option<String> {
        let found = fields.iter().map(|(name, n)| ((*name).to_owned(), (*n).into()));
        value(name, &found.collect(), text, "").map(|value| value.text)
    }

    #[test]
    fn computes_values_from_figures_and_settings() {
        let gib = |n: u64| n << 30;
        let free = [("free_bytes", gib(30)), ("total_bytes", gib(40))];
        assert_eq!(of("free-share", &free, ""), Some("0.73".into()));
        assert_eq!(of("free-share", &free[..1], ""), None);
        let oom = [("requested_bytes", gib(2)), ("free_bytes", gib(1)), ("total_bytes", gib(80))];
        let args = "mem_fraction_static=0.88";
        assert_eq!(of("smaller-share", &oom, args), Some("0.86".into()));
        assert_eq!(of("fitting-length", &[("estimated_len", 5632)], ""), Some("5600".into()));
        let cache = [("max_seq_len", 8192), ("needed_bytes", gib(4)), ("available_bytes", gib(1))];
        assert_eq!(of("fitting-length", &cache, ""), Some("2000".into()));
        assert_eq!(of("model-context", &[("limit_count", 8192)], ""), Some("8192".into()));
        assert_eq!(of("longer-context", &[("prompt_count", 9021)], ""), Some("16384".into()));
        assert_eq!(of("half-of-setting", &[], "max_num_seqs=256,"), Some("128".into()));
        let split = |heads| [("heads", heads), ("parallel_size", 8)];
        assert_eq!(of("dividing-size", &split(28), ""), Some("4".into()));
        assert_eq!(of("dividing-size", &split(71), ""), Some("1".into()));
        let wheel = |library: &str| {
            let found = [("library".to_owned(), library.into())].into_iter().collect();
            value("library-wheel", &found, "", "").map(|value| value.text)
        };
        assert_eq!(wheel("libcudart.so.11.0"), Some("nvidia-cuda-runtime-cu11".into()));
        assert_eq!(wheel("libcusparse.so.12"), Some("nvidia-cusparse-cu12".into()));
        assert_eq!(wheel("libcublasLt.so.13"), Some("nvidia-cublas".into()));
        assert_eq!(wheel("libcudnn_cnn.so.9"), Some("nvidia-cudnn-cu12".into()));
        assert_eq!(wheel("libcudnn_ops_infer.so.8"), Some("\"nvidia-cudnn-cu11<9\"".into()));
        assert_eq!(wheel("libmpi.so.40"), None);
        let found = FieldMap::from_iter([("library".to_owned(), "libnuma.so.1".into())]);
        let package = value("system-package", &found, "", "").map(|value| value.text);
        assert_eq!(package, Some("libnuma1".into()));
        let ggml = "offloaded 33/33 layers to GPU\nCUDA0 model buffer size =  6600.00 MiB";
        assert_eq!(of("fitting-layers", &[("requested_bytes", gib(1))], ggml), Some("26".into()));
    }
}
