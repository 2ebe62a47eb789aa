//! What `/metrics` says, as numbers.

use std::collections::BTreeMap;

/// Each sample as it is printed (`name{label="value"}`), with its value.
pub fn samples(text: &str) -> BTreeMap<String, f64> {
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    let sample = |line: &str| {
        let (sample, value) = line.rsplit_once(' ')?;
        Some((sample.to_owned(), value.parse().ok()?))
    };
    lines.filter_map(sample).collect()
}

/// The sum of all samples of `redleader_NAME` that carry these labels.
pub fn sum(samples: &BTreeMap<String, f64>, name: &str, labels: &[(&str, &str)]) -> f64 {
    let name = format!("redleader_{name}");
    let matches = |sample: &str| {
        let (base, rest) = sample.split_once('{').unwrap_or((sample, ""));
        base == name && labels.iter().all(|(label, value)| rest.contains(&format!("{label}=\"{value}\"")))
    };
    samples.iter().filter(|(sample, _)| matches(sample)).map(|(_, value)| value).sum()
}
