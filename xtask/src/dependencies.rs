//! The dependency policy: permissive licences, and nothing that needs an SDK, cmake or libclang to build.

use std::process::Command;

use anyhow::{Context, bail};
use serde::Deserialize;

use crate::cargo::root;

/// Licences that may be had. A dependency must be available under a choice of these alone.
const LICENCES: [&str; 9] = [
    "MIT",
    "Apache-2.0",
    "Apache-2.0 WITH LLVM-exception",
    "ISC",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "Zlib",
    "Unlicense",
    "Unicode-3.0",
];
/// Packages that build or bind foreign code at build time.
const REFUSED: [&str; 6] = ["bindgen", "cmake", "cc", "pkg-config", "vcpkg", "autotools"];
/// Tools with a licence of their own: of files only, and in nothing that is shipped. `xtask` alone may have them.
const TOOLS: [(&str, &str); 1] = [("cbindgen", "MPL-2.0")];

#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
}

#[derive(Deserialize)]
struct Package {
    name: String,
    version: String,
    license: Option<String>,
    links: Option<String>,
    dependencies: Vec<Dependency>,
}

#[derive(Deserialize)]
struct Dependency {
    name: String,
}

pub fn check() -> anyhow::Result<()> {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--format-version", "1", "--locked", "--filter-platform", "x86_64-unknown-linux-gnu"])
        .current_dir(root())
        .output()
        .context("cargo metadata")?;
    if !output.status.success() {
        bail!("cargo metadata: {}", String::from_utf8_lossy(&output.stderr));
    }
    let metadata: Metadata = serde_json::from_slice(&output.stdout).context("the output of cargo metadata")?;
    let wrong: Vec<_> = metadata.packages.iter().filter_map(objection).collect();
    if !wrong.is_empty() {
        bail!("dependencies that the policy does not allow:\n  {}", wrong.join("\n  "));
    }
    println!("{} packages", metadata.packages.len());
    Ok(())
}

fn objection(package: &Package) -> Option<String> {
    let name = format!("{} {}", package.name, package.version);
    if REFUSED.contains(&package.name.as_str()) {
        return Some(format!("{name} builds or binds foreign code; load the library at run time"));
    }
    // The names that rayon and others use to be linked once name no library.
    if let Some(links) = package.links.as_deref().filter(|links| !links.starts_with("rayon")) {
        return Some(format!("{name} links {links}; load the library at run time"));
    }
    let tool = |dependency: &&Dependency| TOOLS.iter().any(|(tool, _)| *tool == dependency.name);
    if let Some(tool) = package.dependencies.iter().find(tool).filter(|_| package.name != "xtask") {
        return Some(format!("{name} depends on {}, a tool that only xtask may have", tool.name));
    }
    let licence = package.license.as_deref().unwrap_or("none");
    if TOOLS.contains(&(package.name.as_str(), licence)) {
        return None;
    }
    (!allowed(licence)).then(|| format!("{name} has licence {licence}"))
}

/// Whether every `AND` part has an `OR` alternative that is allowed.
fn allowed(expression: &str) -> bool {
    let expression = expression.replace('/', " OR ").replace(['(', ')'], "");
    expression.split(" AND ").all(|part| part.split(" OR ").any(|licence| LICENCES.contains(&licence.trim())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expressions() {
        for good in
            ["MIT", "MIT OR Apache-2.0", "MIT/Apache-2.0", "GPL-3.0 OR MIT", "(MIT OR Apache-2.0) AND Unicode-3.0"]
        {
            assert!(allowed(good), "{good}");
        }
        for bad in ["GPL-3.0", "MIT AND GPL-3.0", "none", ""] {
            assert!(!allowed(bad), "{bad}");
        }
    }

    #[test]
    fn build_time_bindings_are_refused() {
        let package = |name: &str, links: Option<&str>| Package {
            name: name.to_owned(),
            version: "1.0.0".to_owned(),
            license: Some("MIT".to_owned()),
            links: links.map(str::to_owned),
            dependencies: Vec::new(),
        };
        assert!(objection(&package("bindgen", None)).is_some());
        assert!(objection(&package("ibverbs-sys", Some("ibverbs"))).is_some());
        assert!(objection(&package("serde", None)).is_none());
    }

    #[test]
    fn only_xtask_may_have_a_tool() {
        let package = |name: &str, license: &str, dependency: &str| Package {
            name: name.to_owned(),
            version: "1.0.0".to_owned(),
            license: Some(license.to_owned()),
            links: None,
            dependencies: vec![Dependency { name: dependency.to_owned() }],
        };
        assert!(objection(&package("cbindgen", "MPL-2.0", "serde")).is_none());
        assert!(objection(&package("other", "MPL-2.0", "serde")).is_some());
        assert!(objection(&package("cbindgen", "GPL-3.0", "serde")).is_some());
        assert!(objection(&package("xtask", "MIT", "cbindgen")).is_none());
        assert!(objection(&package("campanile-abi", "MIT", "cbindgen")).is_some());
    }
}
