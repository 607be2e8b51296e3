//! The compilers: [`Tools`], Python wheels in a folder of the target.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, bail};

use crate::cargo::root;

/// What is installed. Another version makes other machine code: change it together with the counts.
const PACKAGES: [&str; 3] = ["ziglang==0.17.1", "nvidia-cuda-nvrtc==13.5.37", "nvidia-cuda-nvdisasm==13.5.37"];

pub struct Tools {
    /// Where pip put them.
    packages: PathBuf,
    folder: PathBuf,
}

impl Tools {
    /// Those of the last call, or installed now.
    pub fn get() -> anyhow::Result<Self> {
        let folder = root().join("target/kernel-tools");
        let tools = Self { packages: folder.join("packages"), folder: folder.clone() };
        let stamp = folder.join("installed");
        let wanted = PACKAGES.join("\n");
        if std::fs::read_to_string(&stamp).is_ok_and(|found| found == wanted) {
            return Ok(tools);
        }
        println!("installing {}", PACKAGES.join(", "));
        if tools.packages.exists() {
            std::fs::remove_dir_all(&tools.packages).context("removing the old tools")?;
        }
        std::fs::create_dir_all(&folder)?;
        let mut pip = Command::new("python3");
        pip.args([
            "-m",
            "pip",
            "install",
            "--quiet",
            "--disable-pip-version-check",
            "--no-deps",
            "--only-binary",
            ":all:",
        ]);
        pip.arg("--target").arg(&tools.packages).args(PACKAGES).stdin(Stdio::null());
        let output = pip.output().context("python3 does not start")?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr);
            bail!("pip could not install them: {}", said.trim().lines().last().unwrap_or("no reason given"));
        }
        std::fs::write(stamp, wanted)?;
        Ok(tools)
    }

    pub fn nvrtc(&self) -> PathBuf {
        self.packages.join("nvidia/cu13/lib/libnvrtc.so.13")
    }

    /// What clang makes of a source in HIP's mode, with a definition if there is one. It is assembled and linked too, to see that a loader could take it.
    pub fn amd_listing(
        &self,
        kernels: &Path,
        source: &str,
        definition: Option<[&str; 2]>,
        gfx: &str,
        folder: &Path,
    ) -> anyhow::Result<String> {
        let [listing, object, linked] = ["s", "o", "co"].map(|ending| folder.join("kernel").with_extension(ending));
        let zig = || {
            let mut zig = Command::new(self.packages.join("ziglang/zig"));
            zig.current_dir(kernels).env("ZIG_GLOBAL_CACHE_DIR", self.folder.join("zig-cache"));
            zig
        };
        // In one step clang wants programs that the wheel does not have.
        run(zig()
            .args(["clang", "-x", "hip", "--cuda-device-only", "-nogpuinc", "-nogpulib", "-std=c++17", "-O3"])
            .args(["-ffp-contract=off", "-Wall", "-Wextra", "-Werror", "-I.", "-S", source])
            .args(definition.map(|[name, value]| format!("-D{name}={value}")))
            .arg(format!("--offload-arch={gfx}"))
            .arg("-o")
            .arg(&listing))?;
        run(zig()
            .args(["clang", "-target", "amdgcn-amd-amdhsa", "-c", "-x", "assembler"])
            .arg(format!("-mcpu={gfx}"))
            .arg(&listing)
            .arg("-o")
            .arg(&object))?;
        run(zig().args(["ld.lld", "-shared", "--no-undefined"]).arg(&object).arg("-o").arg(&linked))?;
        std::fs::read_to_string(&listing).context("the listing")
    }

    /// The disassembly of a cubin.
    pub fn nvidia_listing(&self, cubin: &[u8], folder: &Path) -> anyhow::Result<String> {
        let file = folder.join("kernel.cubin");
        std::fs::write(&file, cubin)?;
        run(Command::new(self.packages.join("nvidia/cu13/bin/nvdisasm")).arg("-c").arg(&file))
    }
}

/// Standard output of a program that succeeds.
pub fn run(command: &mut Command) -> anyhow::Result<String> {
    let name = format!("{command:?}");
    let output = command.stdin(Stdio::null()).output().with_context(|| name.clone())?;
    if !output.status.success() {
        let said = [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned()).concat();
        bail!("{name} ended with {}:\n{}", output.status, said.trim_end());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
