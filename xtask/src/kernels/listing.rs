//! Listings of machine code: which instructions of each kernel matter, and which may never be there.
//!
//! Counted are accesses of global memory, fences, cache operations, atomics, barriers and sleeps; registers and offsets
//! are left out, scope and cache bits stay. Refused, whatever the committed counts say:
//!
//! - AMD: scratch memory or spilled registers; flat accesses (the address space was lost); a `buffer_wbl2` that is not
//!   waited for before the next store or atomic (llvm/llvm-project#178316).
//! - NVIDIA: local memory (spilled registers); loads by the read-only path, which is not coherent with peers' stores.

use std::collections::BTreeMap;

use anyhow::bail;

/// Instructions of each kernel, with how often they stand in it.
pub type Kernels = BTreeMap<String, BTreeMap<String, u32>>;

/// Prefixes of AMD's instructions that are counted.
const AMD: [&str; 6] = ["buffer_", "global_", "flat_", "scratch_", "s_barrier", "s_sleep"];
/// Scope and cache bits.
const AMD_BITS: [&str; 3] = ["sc0", "sc1", "nt"];
/// NVIDIA's, up to the first dot.
const NVIDIA: [&str; 14] =
    ["LDG", "STG", "LD", "ST", "LDL", "STL", "ATOM", "ATOMG", "RED", "REDG", "MEMBAR", "CCTL", "BAR", "NANOSLEEP"];

/// From clang's listing (`-S`).
pub fn amd(listing: &str) -> anyhow::Result<Kernels> {
    let mut kernels = Kernels::new();
    let mut refused = Vec::new();
    let mut kernel = None;
    // Where a write-back stands that nothing has waited for.
    let mut write_back = None;
    for (number, line) in (1..).zip(listing.lines()) {
        if let Some(name) = line.strip_suffix(":").or_else(|| line.split_once(": ").map(|(name, _)| name))
            && listing.contains(&format!("\n\t.amdhsa_kernel {name}\n"))
        {
            kernels.entry(name.to_owned()).or_default();
            (kernel, write_back) = (Some(name.to_owned()), None);
        }
        for word in [".private_segment_fixed_size:", ".vgpr_spill_count:", ".sgpr_spill_count:"] {
            if let Some(count) = line.trim().strip_prefix(word).filter(|count| count.trim() != "0") {
                refused.push(format!("line {number}: {word} {}", count.trim()));
            }
        }
        let (Some(kernel), true) = (&kernel, line.starts_with('\t')) else { continue };
        let mut words = line.split([' ', '\t', ',']).filter(|word| !word.is_empty());
        let Some(mnemonic) = words.next() else { continue };
        match mnemonic {
            "buffer_wbl2" => write_back = Some(number),
            "s_waitcnt" if line.contains("vmcnt(0)") => write_back = None,
            _ if mnemonic.starts_with("global_store") || mnemonic.starts_with("global_atomic") => {
                if let Some(at) = write_back.take() {
                    refused.push(format!("{kernel}: line {number} stores before the write-back of line {at} is done"));
                }
            }
            _ if mnemonic.starts_with("flat_") || mnemonic.starts_with("scratch_") => {
                refused.push(format!("{kernel}: line {number}: {mnemonic}"));
            }
            "s_endpgm" => write_back = None,
            _ => {}
        }
        if AMD.iter().any(|prefix| mnemonic.starts_with(prefix)) {
            let bits = words.filter(|word| AMD_BITS.contains(word));
            let instruction = std::iter::once(mnemonic).chain(bits).collect::<Vec<_>>().join(" ");
            *kernels.entry(kernel.clone()).or_default().entry(instruction).or_default() += 1;
        }
    }
    finish(kernels, &refused)
}

/// From nvdisasm (`-c`).
pub fn nvidia(listing: &str) -> anyhow::Result<Kernels> {
    let mut kernels = Kernels::new();
    let mut refused = Vec::new();
    let mut kernel = None;
    for line in listing.lines() {
        if let Some(section) = line.trim().strip_prefix(".section\t.text.").or_else(|| {
            let rest = line.trim().strip_prefix(".section")?;
            rest.trim().strip_prefix(".text.")
        }) {
            let name = section.split([',', ' ', '\t', '"']).next().unwrap_or_default().to_owned();
            kernels.entry(name.clone()).or_default();
            kernel = Some(name);
        }
        let Some(kernel) = &kernel else { continue };
        // `/*0040*/  @!P0 LDG.E.128 R4, ... ;`
        let Some((_, instruction)) = line.split_once("*/") else { continue };
        let mut words = instruction.split_whitespace().filter(|word| !word.starts_with('@'));
        let Some(opcode) = words.next() else { continue };
        let base = opcode.split('.').next().unwrap_or_default();
        if !NVIDIA.contains(&base) {
            continue;
        }
        let local = matches!(base, "LDL" | "STL");
        if local || opcode.split('.').any(|part| part == "CONSTANT") {
            refused.push(format!("{kernel}: {opcode}"));
        }
        *kernels.entry(kernel.clone()).or_default().entry(opcode.trim_end_matches(';').to_owned()).or_default() += 1;
    }
    finish(kernels, &refused)
}

fn finish(kernels: Kernels, refused: &[String]) -> anyhow::Result<Kernels> {
    if !refused.is_empty() {
        bail!("instructions that may not be there:\n  {}", refused.join("\n  "));
    }
    if kernels.is_empty() {
        bail!("no kernel was found in the listing");
    }
    Ok(kernels)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn amd_kernel(body: &str) -> anyhow::Result<Kernels> {
        amd(&format!("first:\n{body}\ts_endpgm\n\t.amdhsa_kernel first\n"))
    }

    #[test]
    fn scope_bits_stay_and_registers_go() {
        let body = "\tglobal_load_dwordx4 v[0:3], v[4:5], off sc0 sc1 nt\n\
                    \tglobal_load_dword v0, v1, s[0:1]\n\
                    \tv_add_u32 v0, v1, v2\n";
        let kernels = amd_kernel(body).unwrap();
        let found: Vec<_> = kernels["first"].iter().map(|(name, count)| (name.as_str(), *count)).collect();
        assert_eq!(found, [("global_load_dword", 1), ("global_load_dwordx4 sc0 sc1 nt", 1)]);
    }

    #[test]
    fn a_write_back_is_waited_for() {
        let store = "\tglobal_store_dword v0, v1, s[0:1] sc0 sc1\n";
        let wait = "\ts_waitcnt vmcnt(0)\n";
        assert!(amd_kernel(&format!("\tbuffer_wbl2 sc0 sc1\n{wait}{store}")).is_ok());
        let error = amd_kernel(&format!("\tbuffer_wbl2 sc0 sc1\n{store}")).unwrap_err().to_string();
        assert!(error.contains("line 3 stores before the write-back of line 2"), "{error}");
    }

    #[test]
    fn spills_and_lost_address_spaces_are_refused() {
        assert!(amd_kernel("\tflat_load_dword v0, v[0:1]\n").is_err());
        assert!(amd_kernel("\tscratch_store_dword off, v0, off\n").is_err());
        assert!(amd("first:\n\ts_endpgm\n\t.amdhsa_kernel first\n    .vgpr_spill_count: 3\n").is_err());
        assert!(amd("").is_err());
        let sass =
            |opcode: &str| format!("\t.section\t.text.first,\"ax\"\n        /*0000*/  @!P0 {opcode} R1, [R2] ;\n");
        assert_eq!(nvidia(&sass("LDG.E.128")).unwrap()["first"]["LDG.E.128"], 1);
        assert!(nvidia(&sass("LDG.E.CONSTANT")).is_err());
        assert!(nvidia(&sass("STL.64")).is_err());
    }
}
