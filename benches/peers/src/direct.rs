//! The side `direct`: the operations written by hand in C on shared memory, the limit for everybody else.

use std::path::{Path, PathBuf};

use crate::case::{Case, Cell};
use crate::compiler::Compiler;
use crate::effort::Effort;
use crate::launch::Launch;
use crate::peer::{Arm, Format, NotRun};

/// Name of the side.
pub const NAME: &str = "direct";

/// The compiled programs.
#[derive(Debug)]
pub struct Direct {
    folder: PathBuf,
}

impl Direct {
    /// Compiles the programs into `build/direct`.
    pub fn build(build: &Path) -> Result<Direct, NotRun> {
        let folder = build.join(NAME);
        for name in ["moe_direct", "put_direct", "barrier_direct"] {
            Compiler::system().compile(name, &folder).map_err(|error| {
                NotRun::new(NAME, format!("{error:#}"), "install a C compiler (apt-get install gcc)")
            })?;
        }
        Ok(Direct { folder })
    }

    /// Every form of the cell's operation: ranks as processes and threads; for moe also both copies and both roundings.
    pub fn arms(&self, cell: &Cell, effort: &Effort) -> Vec<Arm> {
        let mut arms = Vec::new();
        for kind in ["processes", "threads"] {
            let ranks = cell.ranks.to_string();
            let batches = effort.batches.to_string();
            match cell.case {
                Case::Moe => {
                    for (copy, rounding) in
                        [("memcpy", "exact"), ("nt", "exact"), ("memcpy", "hardware"), ("nt", "hardware")]
                    {
                        let args = [
                            ranks.clone(),
                            cell.tokens.to_string(),
                            kind.into(),
                            copy.into(),
                            rounding.into(),
                            effort.iterations(cell).to_string(),
                            effort.warmup(cell).to_string(),
                            effort.budget.as_millis().to_string(),
                        ];
                        arms.push(self.arm("moe_direct", format!("{kind} {copy} {rounding}"), &args));
                    }
                }
                Case::Put => arms.push(self.arm("put_direct", kind.into(), &[kind.into(), batches])),
                // Their limit by hand is the copy limit that `campanile bench` measures itself.
                Case::Broadcast | Case::AllGather => {}
                Case::Barrier => arms.push(self.arm("barrier_direct", kind.into(), &[ranks, kind.into(), batches])),
            }
        }
        arms
    }

    fn arm(&self, program: &str, variant: String, args: &[String]) -> Arm {
        let launch = Launch::new(self.folder.join(program), args);
        Arm { peer: NAME.into(), variant, launch, format: Format::Rows }
    }
}
