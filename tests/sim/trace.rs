//! The readable timeline of one history.

/// Off, or the last lines.
#[derive(Default)]
pub struct Trace {
    lines: Option<Vec<String>>,
}

impl Trace {
    pub fn on() -> Self {
        Self { lines: Some(Vec::new()) }
    }

    pub fn is_on(&self) -> bool {
        self.lines.is_some()
    }

    pub fn note(&mut self, at: u64, step: u64, text: &str) {
        if let Some(lines) = &mut self.lines {
            lines.push(format!("{:>10}.{:03} ms {step:>7}  {text}", at / 1000, at % 1000));
        }
    }

    pub fn last(&self, count: usize) -> &[String] {
        let lines = self.lines.as_deref().unwrap_or_default();
        &lines[lines.len().saturating_sub(count)..]
    }
}
