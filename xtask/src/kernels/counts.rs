//! The committed counts: [`Counts`], `kernels/counts.toml`.

use std::collections::BTreeMap;
use std::fmt::Write;

use anyhow::Context;

use super::listing::Kernels;
use crate::cargo::root;

pub const FILE: &str = "kernels/counts.toml";

const HEADER: &str = "\
# Instructions that matter, by kernel and target, as the compilers of xtask/src/kernels/tools.rs make them. Written by
# `cargo xtask kernels --bless`; read the difference before you commit it.
";

/// Kernel, target, instruction, how often.
#[derive(Default)]
pub struct Counts(BTreeMap<String, BTreeMap<String, BTreeMap<String, u32>>>);

impl Counts {
    pub fn read() -> anyhow::Result<Self> {
        let text = std::fs::read_to_string(root().join(FILE)).context(FILE)?;
        Ok(Self(toml::from_str(&text).context(FILE)?))
    }

    pub fn write(&self) -> anyhow::Result<()> {
        let mut text = HEADER.to_owned();
        for (kernel, targets) in &self.0 {
            for (target, instructions) in targets {
                write!(text, "\n[{kernel}.{target}]\n")?;
                for (instruction, count) in instructions {
                    writeln!(text, "{instruction:?} = {count}")?;
                }
            }
        }
        std::fs::write(root().join(FILE), text).context(FILE)
    }

    /// Adds kernels, whose names are to end with `ending`.
    pub fn add(&mut self, target: &str, ending: &str, kernels: Kernels) {
        for (kernel, instructions) in kernels {
            self.0.entry(kernel + ending).or_default().insert(target.to_owned(), instructions);
        }
    }

    /// Kernels.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Lines that say where `found` is another.
    pub fn differences(&self, found: &Self) -> Vec<String> {
        let (old, new) = (self.flat(), found.flat());
        let mut lines = Vec::new();
        for name in old.keys().chain(new.keys().filter(|name| !old.contains_key(*name))) {
            let count = |counts: &BTreeMap<String, u32>| counts.get(name).copied().unwrap_or(0);
            if count(&old) != count(&new) {
                lines.push(format!("{name}: {} committed, {} found", count(&old), count(&new)));
            }
        }
        lines
    }

    fn flat(&self) -> BTreeMap<String, u32> {
        let mut all = BTreeMap::new();
        for (kernel, targets) in &self.0 {
            for (target, instructions) in targets {
                // So that a kernel without any is seen to be there.
                all.insert(format!("{kernel} on {target}"), 1);
                for (instruction, count) in instructions {
                    all.insert(format!("{kernel} on {target}: {instruction}"), *count);
                }
            }
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(text: &str) -> Counts {
        Counts(toml::from_str(text).unwrap())
    }

    #[test]
    fn differences_go_both_ways() {
        let old = counts("[a.x]\n\"ld\" = 1\n\"st\" = 2\n[b.x]\n");
        assert!(old.differences(&counts("[a.x]\n\"ld\" = 1\n\"st\" = 2\n[b.x]\n")).is_empty());
        let found = old.differences(&counts("[a.x]\n\"ld\" = 1\n\"st\" = 3\n\"fence\" = 1\n"));
        let wanted =
            ["a on x: st: 2 committed, 3 found", "b on x: 1 committed, 0 found", "a on x: fence: 0 committed, 1 found"];
        assert_eq!(found, wanted);
    }
}
