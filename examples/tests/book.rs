//! What the guide says twice is what the code says.

use std::fmt::Write;
use std::path::Path;

use campanile::core::{Scope, VARIABLES};

/// The table of variables as the guide shows it.
fn variables() -> String {
    let mut table = "| variable | default | set for | what it is; allowed values |\n|---|---|---|---|\n".to_owned();
    for variable in VARIABLES {
        let scope = match variable.scope {
            Scope::Job => "job",
            Scope::Process => "process",
        };
        let (name, default, doc, allowed) = (variable.name, variable.default, variable.doc(), variable.allowed());
        writeln!(table, "| `{name}` | `{default}` | {scope} | {doc} *{allowed}* |").expect("a string takes it");
    }
    table
}

#[test]
fn the_table_of_variables_is_that_of_the_code() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/src/guide/configuration.md");
    let text = std::fs::read_to_string(&page).expect("the page is there");
    let table = variables();
    assert!(text.contains(&table), "{} must have this table:\n\n{table}", page.display());
}
