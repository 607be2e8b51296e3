//! The C header of the plugin boundary, generated from `crates/abi`.
//!
//! Constants get the prefix `CAMPANILE_`, types the prefix `Campanile`. What a C author needs beside the types (the
//! entry symbol, and the macros for `struct_size` and fault words) stands here, since Rust has other words for it.

use std::collections::HashMap;
use std::path::PathBuf;

use anyhow::{Context, bail};
use cbindgen::{Builder, Config, DocumentationStyle, ExportConfig, Language, Style};

use crate::cargo::root;

/// The modules, in the order in which a reader needs them.
const MODULES: [&str; 12] =
    ["text", "error", "host", "memory", "op", "caps", "request", "queue", "transport", "device_code", "plugin", "lib"];

const HEADER: &str = "\
/* Campanile: the boundary to transports that are files of their own (C11 and C++11).
 * Generated from crates/abi by `cargo xtask headers`; do not edit. Comments leave out the prefix of names.
 *
";

const GUARD: &str = "

#ifndef CAMPANILE_TRANSPORT_H
#define CAMPANILE_TRANSPORT_H";

const TRAILER: &str = "\
/* Whether a struct that begins with struct_size reaches as far as a field: only then is the field read or written. Fields
 * that are in version 1.0 always are. */
#define CAMPANILE_HAS(pointer, field) \\
  ((const char *)&(pointer)->field + sizeof((pointer)->field) \\
   <= (const char *)(pointer) + (pointer)->struct_size)

/* A fault word and its parts. */
#define CAMPANILE_FAULT(kind, culprit, reporter) \\
  ((uint64_t)(kind) << 48 | ((uint64_t)(reporter) & 0xffffff) << 24 | ((uint64_t)(culprit) & 0xffffff))
#define CAMPANILE_FAULT_KIND(word) ((uint32_t)((uint64_t)(word) >> 48))
#define CAMPANILE_FAULT_CULPRIT(word) ((uint32_t)((word) & 0xffffff))
#define CAMPANILE_FAULT_REPORTER(word) ((uint32_t)((word) >> 24 & 0xffffff))

/* The only symbol that a plugin needs to export. Returns its table for a host of that major version, or NULL if it has
 * none. */
#ifdef __cplusplus
extern \"C\"
#endif
#if defined(__GNUC__)
__attribute__((visibility(\"default\")))
#endif
const CampanilePlugin *campanile_transport_plugin(uint32_t host_major);

#endif  /* CAMPANILE_TRANSPORT_H */
";

fn path() -> PathBuf {
    root().join("crates/abi/include/campanile/transport.h")
}

/// Writes the header.
pub fn write() -> anyhow::Result<()> {
    let path = path();
    std::fs::create_dir_all(path.parent().expect("it lies in a folder"))?;
    std::fs::write(&path, generate()?).with_context(|| path.display().to_string())?;
    println!("{}", path.display());
    Ok(())
}

/// Makes sure that the committed header is what the crate says.
pub fn check() -> anyhow::Result<()> {
    let path = path();
    let committed = std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    if committed != generate()? {
        bail!("{} is not what crates/abi says; run `cargo xtask headers`", path.display());
    }
    Ok(())
}

fn generate() -> anyhow::Result<String> {
    let folder = root().join("crates/abi/src");
    let read = |module: &str| {
        let file = folder.join(module).with_extension("rs");
        std::fs::read_to_string(&file).with_context(|| file.display().to_string())
    };
    let mut rename = HashMap::new();
    let mut builder = Builder::new();
    for module in MODULES {
        let source = read(module)?;
        for name in source.lines().filter_map(|line| line.strip_prefix("pub const ")?.split(':').next()) {
            rename.insert(name.to_owned(), format!("CAMPANILE_{name}"));
        }
        builder = builder.with_src(folder.join(module).with_extension("rs"));
    }
    let export = ExportConfig {
        prefix: Some("Campanile".to_owned()),
        rename,
        renaming_overrides_prefixing: true,
        include: ["Plugin", "Op", "Host"].map(str::to_owned).to_vec(),
        ..ExportConfig::default()
    };
    let config = Config {
        language: Language::C,
        cpp_compat: true,
        header: Some([HEADER, &comment(&read("lib")?), GUARD].concat()),
        trailer: Some(TRAILER.to_owned()),
        no_includes: true,
        sys_includes: ["stddef.h", "stdint.h"].map(str::to_owned).to_vec(),
        usize_is_size_t: true,
        style: Style::Both,
        documentation_style: DocumentationStyle::C99,
        line_length: 120,
        export,
        ..Config::default()
    };
    let bindings = builder.with_config(config).generate().context("cbindgen")?;
    let mut text = Vec::new();
    bindings.write(&mut text);
    Ok(without_links(&String::from_utf8(text)?))
}

/// Turns the links of rustdoc, ``[`name`]`` and ``[`name`](path)``, into ``name``.
fn without_links(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, link)) = rest.split_once("[`") {
        let Some((name, after)) = link.split_once("`]") else { break };
        plain.extend([before, name]);
        rest = after.strip_prefix('(').and_then(|path| path.split_once(')')).map_or(after, |(_, after)| after);
    }
    plain + rest
}

/// The documentation of a crate as the rest of a C comment.
fn comment(source: &str) -> String {
    let lines = source.lines().map_while(|line| line.strip_prefix("//!"));
    lines.map(|line| format!(" *{line}\n")).collect::<String>() + " */"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_become_names() {
        assert_eq!(without_links("a [`B`] c [`D`](crate::D), e[`"), "a B c D, e[`");
    }
}
