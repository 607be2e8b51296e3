//! Relative links of Markdown files lead to files that exist.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail};

use crate::cargo::root;

pub fn check() -> anyhow::Result<()> {
    let mut broken = Vec::new();
    let files = markdown_files()?;
    for file in &files {
        let text = std::fs::read_to_string(root().join(file)).with_context(|| file.display().to_string())?;
        let folder = file.parent().unwrap_or(Path::new(""));
        for target in targets(&text) {
            let path = target.split('#').next().unwrap_or_default();
            if !path.is_empty() && !root().join(folder).join(path).exists() {
                broken.push(format!("{}: {target}", file.display()));
            }
        }
    }
    if files.is_empty() {
        bail!("no Markdown file was found");
    }
    if !broken.is_empty() {
        bail!("links to files that do not exist:\n  {}", broken.join("\n  "));
    }
    Ok(())
}

fn markdown_files() -> anyhow::Result<Vec<PathBuf>> {
    let listed = Command::new("git")
        .args(["ls-files", "--cached", "--others", "--exclude-standard", "*.md"])
        .current_dir(root())
        .output()
        .context("git ls-files")?;
    Ok(String::from_utf8_lossy(&listed.stdout).lines().map(PathBuf::from).collect())
}

/// The relative targets of `[text](target)`; code is left out.
fn targets(text: &str) -> Vec<&str> {
    let mut targets = Vec::new();
    let mut in_code = false;
    for line in text.lines() {
        if line.trim_start().starts_with("```") {
            in_code = !in_code;
        }
        if in_code {
            continue;
        }
        for (at, _) in line.match_indices("](") {
            let rest = &line[at + 2..];
            let target = rest.split(')').next().unwrap_or_default().split_whitespace().next().unwrap_or_default();
            if !target.contains("://") && !target.starts_with("mailto:") {
                targets.push(target);
            }
        }
    }
    targets
}

#[cfg(test)]
mod tests {
    #[test]
    fn only_relative_links_outside_code_count() {
        let text = "[a](b.md) [c](https://d) [e](f/g.md#h \"title\")\n```\n[i](j.md)\n```\n[k](#l)";
        assert_eq!(super::targets(text), ["b.md", "f/g.md#h", "#l"]);
    }
}
