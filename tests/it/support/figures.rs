//! What the tests measured, and the environment that they are told through.

use std::io::Write;

/// A variable of the environment, if it is set and not empty.
#[expect(clippy::disallowed_methods, reason = "the tests' own settings; the product's rule is about src")]
pub fn setting(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

/// Prints a figure, and appends it to the file that `REDLEADER_FIGURES` names, which `make test` shows at its end.
pub fn figure(name: &str, text: &str) {
    let line = format!("{name}: {text}\n");
    print!("{line}");
    if let Some(path) = setting("REDLEADER_FIGURES") {
        let file = std::fs::OpenOptions::new().create(true).append(true).open(&path);
        let written = file.and_then(|mut file| file.write_all(line.as_bytes()));
        if let Err(error) = written {
            println!("cannot append a figure to {path}: {error}");
        }
    }
}

/// The p-th percentile (nearest rank) of samples in any order; `None` without samples.
pub fn percentile(samples: &[f64], p: u32) -> Option<f64> {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    let rank = (sorted.len() * p as usize).div_ceil(100).max(1);
    sorted.get(rank - 1).copied()
}
